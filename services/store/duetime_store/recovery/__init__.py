"""What survives a restart, and what is deleted.

recovery      opening a directory: what the log says is the truth
replay        from records to queues, watermarks and recent ids
queueloading  queues from their files, as far as a checkpoint vouches for them
checkpoint    the file; checkpointer: when it is written
retention     deletes old segments, and keeps what is pending
"""
