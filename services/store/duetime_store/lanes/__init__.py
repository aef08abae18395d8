"""Lanes: pending messages, when they fall due, and which schedulers serve them.

lane        the interface of a lane: what is pending and what is restored
levellane   the lane of one delay level
lanes       all lanes of a shard
attendance  which schedulers ask for a lane
lateness    how late messages were restored
alarm       wakes waiters at a moment of the shard's clock
"""
