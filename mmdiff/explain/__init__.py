"""`mmdiff explain`: the paths on which labels reach a test point (paper, "Qualitative results")."""
