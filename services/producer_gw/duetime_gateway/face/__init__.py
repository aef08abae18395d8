"""The gateway in the words of `duetime.v1`: requests become domain objects here, and outcomes become answers."""
