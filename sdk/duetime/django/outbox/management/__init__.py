"""Commands of `manage.py`, found by Django."""
