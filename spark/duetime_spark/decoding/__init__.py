"""Bytes to columns: records of the log, and the events of groups, as Arrow has them."""
