"""`mmdiff export`: artifacts as files for other tools."""
