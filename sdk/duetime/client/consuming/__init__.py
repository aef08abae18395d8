"""Consuming: pullers by offset, receivers by lease, and consumers that call handlers."""
