"""Requests of `duetime.v1` as packed records, and outcomes as encoded answers: in Python, and compiled twins of it."""
