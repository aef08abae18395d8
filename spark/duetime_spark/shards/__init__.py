"""A shard: the place of its files, and their content at one moment."""
