"""The store's directory: its files, its lock, and the handling of a full, slow or failed disk.

disk       every call that changes a file; tests put faulty disks in its place
directory  the layout, the lock, the marks of a clean stop
configs    config/*.json
derived    files derived from the log, as of a checkpoint
gate       the shard's reasons to reject writes, or sends
reserve    disk space kept free for due messages when the disk is full
"""
