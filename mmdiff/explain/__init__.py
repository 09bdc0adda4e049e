"""`mmdiff explain`: the path on which a label came to a test point (paper, "Qualitative results")."""
