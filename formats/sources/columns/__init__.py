"""Labels, ids and class names, one value for each row, from `.npy`, text, CSV or Parquet."""
