"""Bytes to Arrow columns: records of the log, and the events of groups."""
