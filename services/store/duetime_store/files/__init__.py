"""The store's directory: its files, who may use it, and trouble with the disk.

disk       every call that changes a file; tests put faulty disks in its place
directory  the layout, the lock, the marks of a clean stop
configs    config/*.json
gate       why the shard takes no writes, or no sends
reserve    room kept back for what is due when the disk is full
"""
