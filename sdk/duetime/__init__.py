"""DueTime's Python SDK."""
