"""`mmdiff fuse`: late fusion of two classifiers (paper, section 4.1)."""
