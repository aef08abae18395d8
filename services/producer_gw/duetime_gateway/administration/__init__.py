"""Administration of groups, lanes and the backlog: combines the shards' responses, which are in their own contract."""
