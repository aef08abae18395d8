"""gRPC's event engine, switched off in the releases that can still do without it.

Since 1.80 gRPC for Python runs its connections on an event engine with threads of its own. Its former engine, which the
asyncio loop polls itself, wakes fewer threads for each call: a lone call costs 40 % less processor time.
"""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "GRPC_EXPERIMENTS"
FORMER_ENGINE = "-event_engine_client,-event_engine_listener"
# The releases with these switches: gRPC prints a line about each unknown one. A test notices when they disappear.
KNOWN_FROM, KNOWN_BEFORE = (1, 80), (1, 86)
_VERSION = re.compile(r"(\d+)\.(\d+)\.\d+")


def choose_engine() -> None:
    """Chooses the former engine for this process, unless GRPC_EXPERIMENTS is set, empty or not.

    gRPC reads the variable when it is loaded: an application that loads it earlier keeps its engine. All channels of
    the process use the same one.
    """
    if "grpc" not in sys.modules and has_switches(_installed()):
        os.environ.setdefault(VARIABLE, FORMER_ENGINE)  # noqa: TID251  set for gRPC, not read


def has_switches(version: str) -> bool:
    """Whether a release of grpcio knows the switches."""
    found = _VERSION.search(version)
    return found is not None and KNOWN_FROM <= (int(found[1]), int(found[2])) < KNOWN_BEFORE


def _installed() -> str:
    """The text with the version of grpcio, which is not loaded for it; empty: unknown."""
    spec = find_spec("grpc")
    if spec is None or spec.origin is None:
        return ""
    try:
        return Path(spec.origin).with_name("_grpcio_metadata.py").read_text()
    except OSError:
        return ""
