"""Shards with copies, which are experimental.

    Copy         Raft's core (the optional wheel `duetime_raft`), the bytes of a commit log, and the marks in it
    Member       a running Copy: ticks, messages, writes, commits
    PeerLink     the stream to another member; CopiesService receives theirs
    Copies       the store's committer
    GroupClock   the shard's time
    Membership   all of them in one store process

Only these modules need the wheel: the node imports Membership if its settings name copies (docs/adr/0088, 0091).
"""
