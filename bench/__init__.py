"""How fast the cluster is, beside queues that do the same and a bare gRPC echo, in one run on one machine."""
