"""Limits of a process that its callers share: connections, bytes, calls, turns, seats."""
