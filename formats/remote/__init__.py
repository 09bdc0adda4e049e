"""Remote stores (S3 and others): reading them in place, and fetching their artifacts."""
