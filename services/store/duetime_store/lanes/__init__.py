"""Lanes: what is pending, who serves it, and when it falls due.

lane        one lane: what is pending and what is restored
attendance  which schedulers ask for a lane
alarm       wakes whoever waits for a moment of the shard's clock
"""
