"""The schema's history, oldest first by file name."""
