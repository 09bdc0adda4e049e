"""Experiments: the paper's protocol as a grid of methods, backgrounds, n and draws, on any data (paper, section 4)."""
