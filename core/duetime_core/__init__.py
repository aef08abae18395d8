"""What makes a process a DueTime node: clock, errors, settings, serving, metadata and the on-disk format."""

import os

# gRPC reads it once, when it is loaded. What its core has to say of a stranger's bytes, a line for each of them, says
# nothing to an operator; what it says of us comes as an error of a call. GRPC_VERBOSITY=ERROR shows it.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
