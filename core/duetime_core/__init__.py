"""What makes a process a DueTime node: clock, errors, settings, serving, metadata and the on-disk format."""
