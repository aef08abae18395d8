"""Restarts and deletion: recovery, checkpoints, retention.

recovery      opening a directory: the log is the truth
following     the same, again and again, at a copy of a shard that does not lead
lanemaking    lanes, by the checkpoint and the ends after it
replay        from records to queues, watermarks and recent ids
halfreplay    ends of half messages in records after the checkpoint
halfloading   marks of half messages, and the table of open transactions
queueloading  queues from their files, as far as a checkpoint confirms them
checkpoint    the file; checkpointer: its loop
saving        saves derived state with a checkpoint
retention     deletes old segments, and keeps pending messages
"""
