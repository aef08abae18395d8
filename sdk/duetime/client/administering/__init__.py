"""Administering: topics, groups and lanes, as they are and as they are created."""
