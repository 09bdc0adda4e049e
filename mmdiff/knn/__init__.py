"""k-nearest-neighbour lists, the rows of W0 (paper, section 3.2; supplement "Computation of the W0 blocks")."""
