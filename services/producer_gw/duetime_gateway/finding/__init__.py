"""Finds messages by key or id, and offsets by time, over all shards that may have them."""
