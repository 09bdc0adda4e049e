"""The HTML report: a store as one self-contained page."""
