"""The processes that the gateway calls: the stores, what each knows, the puts that go there; and the retry service."""
