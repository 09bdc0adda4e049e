"""Cells of near rows, and the order of nodes that keeps neighbours together on disk and in cache."""
