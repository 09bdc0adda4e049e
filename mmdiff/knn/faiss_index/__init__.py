"""Faiss indexes from factory strings, tuned to a recall, on CPUs and GPUs."""
