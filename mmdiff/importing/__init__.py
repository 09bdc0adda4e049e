"""`mmdiff import`: embeddings become descriptors: checked, reduced by PCA, normalised (paper, section 4.1)."""
