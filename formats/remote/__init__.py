"""Stores on S3 and elsewhere: reading them in place, and fetching their artifacts."""
