"""The SDK's client: producers, pullers, consumers and their messages. Import it from `duetime`."""

import os

from duetime.engine import choose_engine

# gRPC reads the variable once, when it is loaded. With fork support its core restarts threads in a forked child, which
# crashes the child. Set GRPC_ENABLE_FORK_SUPPORT=1 to use it regardless.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # noqa: TID251  set for gRPC, not read
choose_engine()
