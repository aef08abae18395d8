"""Pending messages over all shards: cancelled, rescheduled, listed and counted before they fall due.

As in `finding`, what shards answer is put together in the messages of the store's contract (docs/adr/0026).
"""
