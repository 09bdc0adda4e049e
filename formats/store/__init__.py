"""The store: manifests, artifacts and their kinds, publishing, verifying and collecting garbage."""
