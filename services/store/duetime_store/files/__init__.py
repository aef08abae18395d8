"""The store's directory: its files, its lock, and what happens when the disk is full, slow or failed.

disk       every call that changes a file; tests put faulty disks in its place
directory  the layout, the lock, the marks of a clean stop
configs    config/*.json
derived    files that are derived from the log, as of a checkpoint
gate       why the shard takes no writes, or no sends
reserve    disk space that is kept free for due messages when the disk is full
"""
