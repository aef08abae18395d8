"""The gRPC servers that tests run against: grpcio's, and the compiled front where it is built."""

import importlib.util
import os

import pytest
from duetime_core.rpc.fronts import FrontKind

# Set by the gate, where everything compiled is built.
REQUIRED = os.environ.get("DUETIME_TEST_REQUIRE_NATIVE") == "1"
_missing = importlib.util.find_spec("duetime_front") is None and not REQUIRED
COMPILED = pytest.param(
    FrontKind.COMPILED,
    marks=pytest.mark.skipif(_missing, reason="the compiled front is not built"),
)
# The mark of a module or test that runs against both; needs the fixture `front`.
both = pytest.mark.parametrize("front", [FrontKind.GRPCIO, COMPILED], indirect=True)

_current = FrontKind.GRPCIO


def current() -> FrontKind:
    """The server of the running test."""
    return _current


def use(kind: FrontKind) -> None:
    """Sets the server of the running test."""
    global _current
    _current = kind
