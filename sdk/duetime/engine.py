"""gRPC's event engine, switched off in the releases that can still do without it.

Since 1.80 gRPC for Python runs its connections on an event engine with threads of its own. Its former engine, which the
asyncio loop polls itself, wakes fewer threads for each call: a lone call costs 40 % less processor time.
"""

import os
import re

import grpc

VARIABLE = "GRPC_EXPERIMENTS"
FORMER_ENGINE = "-event_engine_client,-event_engine_listener"
# The releases with these switches: gRPC prints a line about each unknown one. A test notices when they disappear.
KNOWN_FROM, KNOWN_BEFORE = (1, 80), (1, 86)


def choose_engine() -> None:
    """Chooses the former engine for this process, unless GRPC_EXPERIMENTS is set, empty or not.

    gRPC reads the variable with its first channel or server. All channels of the process use the same engine.
    """
    if has_switches(grpc.__version__):
        os.environ.setdefault(VARIABLE, FORMER_ENGINE)  # noqa: TID251  set for gRPC, not read


def has_switches(version: str) -> bool:
    """Whether a release of grpcio knows the switches."""
    found = re.match(r"(\d+)\.(\d+)\.", version)
    return found is not None and KNOWN_FROM <= (int(found[1]), int(found[2])) < KNOWN_BEFORE
