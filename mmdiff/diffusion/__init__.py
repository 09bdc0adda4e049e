"""The diffusion L <- eta(W L): a few labels streamed over the graph in batches of columns (paper, sections 3.3 and 3.4)."""
