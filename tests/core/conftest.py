"""The gRPC server of each test: a module with the mark `tests.fronts.both` runs against both."""

from collections.abc import Iterator

import pytest
from duetime_core.rpc.fronts import FrontKind

from tests import fronts


@pytest.fixture(autouse=True)
def front(request: pytest.FixtureRequest) -> Iterator[FrontKind]:
    kind: FrontKind = getattr(request, "param", FrontKind.GRPCIO)
    fronts.use(kind)
    yield kind
    fronts.use(FrontKind.GRPCIO)
