"""The console: the cluster as pages and as JSON over HTTP, for people and programs without gRPC."""
