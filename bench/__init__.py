"""How fast the cluster is, against a bare gRPC echo of the same messages on the same machine."""
