"""`mmdiff label`: labels that come and go, kept in `labels/current`."""
