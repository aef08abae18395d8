"""Lanes: pending messages, their due times, and the schedulers that serve them.

lane        the interface of a lane: pending and restored messages
levellane   the lane of one delay level
timerlane   the lane of messages for any time
timerorder  its order, and rebuilding it from units and records
timerrows   rows of the order, from units and records
order       entries in the order of their due times, on disk and in memory
ends        ends of entries that their units do not show
measured, timermeasured  bytes of pending records, updated as entries come and leave
lanes       all lanes of a shard
attendance  the schedulers that ask for a lane
lateness    the lateness of restored messages
alarm       wakes waiters at a time of the shard's clock
"""
