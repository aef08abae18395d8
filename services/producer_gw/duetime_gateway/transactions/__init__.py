"""Transactions over all shards: prepared, ended, checked and listed.

As in `pending`, the shards' answers are combined in the store's contract (docs/adr/0026).
"""
