"""The SDK's client: producers, pullers and what they send and receive. Import it from `duetime`."""

import os

# gRPC reads it once, when it is loaded. Its core would start threads anew in a forked child, of which the child dies,
# whatever else it does. Whoever wants that all the same says GRPC_ENABLE_FORK_SUPPORT=1.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # noqa: TID251  set for gRPC, not read
