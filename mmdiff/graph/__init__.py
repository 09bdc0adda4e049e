"""The symmetrised graph W = D^-1 (W0 + W0^T): made from neighbour lists or imported, out of core (paper, section 3.2)."""
