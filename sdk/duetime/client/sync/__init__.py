"""The clients for plain code: the asynchronous ones, run by one background thread of the process."""
