"""A shard: where its files are, and what they held at one moment."""
