"""Sending: messages are gathered into requests, and retried with the same ids until they are stored or rejected."""
