"""Data structures that order pending messages by due time, measured beside each other."""
