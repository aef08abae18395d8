"""The webhook worker: posts messages of topics to URLs, signed."""
