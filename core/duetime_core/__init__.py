"""What makes a process a DueTime node: clock, errors, settings, serving, metadata and the on-disk format."""

import os

# gRPC reads it once, when it is loaded. Its core logs a line for each of a stranger's bad requests, which is of no use
# to an operator; its errors about our calls come with the calls. GRPC_VERBOSITY=ERROR shows the lines.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
