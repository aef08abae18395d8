"""The console: the cluster as web pages and as JSON over HTTP, for people and for programs without gRPC."""
