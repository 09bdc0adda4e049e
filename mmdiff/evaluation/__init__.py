"""`mmdiff evaluate`: accuracy of scores, with intervals, and what goes wrong."""
