"""Searching neighbours: exact, in cells, through neighbours' neighbours, and for points outside the collection."""
