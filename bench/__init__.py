"""The cluster's speed, beside similar queues and a bare gRPC echo, in one run on one machine."""
