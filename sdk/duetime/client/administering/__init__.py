"""Administration: topics, groups and lanes."""
