"""The common parts of DueTime nodes: clock, errors, settings, serving, metadata and the on-disk format."""

import os

from duetime.engine import choose_engine

# gRPC reads it once, when loaded. Its core logs each bad request of strangers, which does not help operators; errors of
# our own calls are reported by the calls. GRPC_VERBOSITY=ERROR shows the lines.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
choose_engine()
