"""Rows to label next: those whose labels would reach the most that no label has reached yet."""
