"""Open transactions: the table of them, and their checks."""
