"""The clients for plain code: wrappers of the asynchronous ones, which share one background thread of the process."""
