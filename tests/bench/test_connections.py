"""The measurement of many connections sends each message once, beside idle connections that stay."""

from pathlib import Path

import pytest
from duetime_core.rpc.fronts import FrontKind

from bench import connections
from tests import fronts
from tests.twins import native

native("duetime_wire")


@pytest.mark.parametrize("front", [FrontKind.GRPCIO, fronts.COMPILED])
def test_connections_stay_open_and_send(front: FrontKind, tmp_path: Path) -> None:
    found = connections.measure(front.value, 8, 4, 1.0, tmp_path)
    assert (found["sent"], found["faults"]) == (4, {})
    assert 0 < found["p50"] <= found["p99"] <= found["max"]
