"""`mmdiff experiment`: the paper's protocol as a grid of methods and draws, on any data."""
