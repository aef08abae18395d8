"""The base of shards with copies, which are not offered yet: nothing else of the store imports this package.

A copy joins Raft's core (the optional wheel `duetime_raft`), the bytes of a commit log, and the marks in it
(docs/adr/0088).
"""
