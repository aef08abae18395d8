"""Sending: admits drafts, chooses their queues, encodes records and puts them."""
