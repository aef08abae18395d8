"""Topics: which shards hold their queues, looked up, made and adopted."""
