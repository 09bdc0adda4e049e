"""The store: manifests, artifacts and their kinds, publishing, verification and garbage collection."""
