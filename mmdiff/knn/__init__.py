"""The k-nearest-neighbour lists that the graph is made of (paper, section 3.2 and the supplement on the blocks of W0)."""
