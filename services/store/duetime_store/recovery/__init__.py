"""Restarts and deletion: recovery, checkpoints, retention.

recovery      opening a directory: the log is the truth
replay        from records to queues, watermarks and recent ids
halfreplay    what records after the checkpoint say of half messages
halfloading   marks of half messages, and the table of open transactions
queueloading  queues from their files, as far as a checkpoint vouches for them
checkpoint    the file; checkpointer: when it is written
ordersaving   saves the orders of timer lanes with a checkpoint
retention     deletes old segments, and keeps pending messages
"""
