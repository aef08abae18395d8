"""Topics and the shards of their queues: looked up, created and adopted."""
