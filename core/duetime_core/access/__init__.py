"""Callers, their roles and certificates: authentication between processes, and of clients."""
