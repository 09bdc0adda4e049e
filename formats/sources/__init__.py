"""Readers of other people's files: embeddings, labels, ids, class names and graphs."""
