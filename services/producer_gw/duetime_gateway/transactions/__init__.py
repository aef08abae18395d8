"""Transactions over all shards: prepared, ended, checked and listed.

As in `pending`, what shards answer is put together in the messages of the store's contract (docs/adr/0026).
"""
