"""Cells of similar rows, and the cell order of nodes, which keeps neighbours together on disk and in cache."""
