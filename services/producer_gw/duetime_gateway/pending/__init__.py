"""Pending messages over all shards: cancelled, rescheduled, listed and counted before they fall due.

As in `finding`, the shards' answers are combined in the store's contract (docs/adr/0026).
"""
