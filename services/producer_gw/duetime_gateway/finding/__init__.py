"""What all shards are asked at once: messages by key or id, lanes, the backlog."""
