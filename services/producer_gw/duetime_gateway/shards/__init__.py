"""The stores: a connection to each, what each knows, and the puts and questions that go there."""
