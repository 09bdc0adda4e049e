"""Bytes on disk: arrays of mappable chunks, checksums, memory maps, and the seam that makes every change to files."""
