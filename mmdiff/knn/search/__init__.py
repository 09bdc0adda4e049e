"""Search for neighbours: exhaustive, within cells, over neighbours' neighbours, and for points outside the background."""
