"""The SDK's client: producers, pullers and what they send and receive. Import it from `duetime`."""
