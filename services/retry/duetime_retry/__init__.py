"""The retry service."""
