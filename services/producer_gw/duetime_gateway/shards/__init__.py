"""Clients of the stores and of the retry service: shards with their topics, puts and streams."""
