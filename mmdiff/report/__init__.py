"""`mmdiff report`: the store as one self-contained HTML page."""
