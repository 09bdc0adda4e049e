"""`mmdiff inspect`: artifacts in figures, one line each or in detail."""
