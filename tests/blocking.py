"""The channels of blocking calls that tests run against: grpcio's, and the compiled one where it is built."""

import importlib.util
import os

import pytest
from duetime.client.wire import COMPILED, GRPCIO

_missing = importlib.util.find_spec("duetime_wire") is None and os.environ.get("DUETIME_TEST_REQUIRE_NATIVE") != "1"
compiled = pytest.param(COMPILED, marks=pytest.mark.skipif(_missing, reason="the compiled client is not built"))
# The mark of a module or test that runs against both; needs the fixture `client`.
both = pytest.mark.parametrize("client", [GRPCIO, compiled], indirect=True)
# The same for one of them alone.
grpcio_only = pytest.mark.parametrize("client", [GRPCIO], indirect=True)
compiled_only = pytest.mark.parametrize("client", [compiled], indirect=True)
