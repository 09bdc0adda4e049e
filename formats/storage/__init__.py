"""Arrays on disk: mappable chunks, checksums, memory maps, and the seam that makes all changes to files."""
