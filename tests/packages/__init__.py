"""The distributions, as they are installed."""
