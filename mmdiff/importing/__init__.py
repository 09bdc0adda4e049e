"""`mmdiff import`: from files to descriptors, examined, reduced by PCA and normalised (paper, section 4.1)."""
