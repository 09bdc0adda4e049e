"""Labels, ids and class names, from `.npy`, text, CSV, Parquet, and from memory."""
