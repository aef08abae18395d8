"""Calls between processes: servers with their border, channels, streams, and errors as statuses."""
