"""Lanes: pending messages, when they fall due, and which schedulers serve them.

lane        the interface of a lane: what is pending and what is restored
levellane   the lane of one delay level
timerlane   the lane of messages for any time
timerorder  its order, with what that is derived from
timerrows   rows of the order, from units and records
order       entries in the order of their due times, on disk and in memory
ends        ends of entries that their units do not show
measured, timermeasured  bytes of pending records, followed as entries come and leave
lanes       all lanes of a shard
attendance  which schedulers ask for a lane
lateness    how late messages were restored
alarm       wakes waiters at a moment of the shard's clock
"""
