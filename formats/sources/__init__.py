"""Readers of embeddings, labels, ids, class names and graphs, from files and from memory."""
