"""A wheel that was built for another version is named, not used."""

from collections.abc import Callable

import pytest
from duetime.client.errors import InvalidArgument
from duetime.client.wire import COMPILED, VARIABLE, is_compiled
from duetime_core.clock import SystemClock
from duetime_core.errors import StartupError
from duetime_core.rpc.compiled import CompiledFront
from duetime_format.compiled import INTERFACES, check_fits
from duetime_store.node import make_membership
from duetime_store.settings import StoreSettings
from prometheus_client import CollectorRegistry

from tests.twins import native

wheels = {name: native(name) for name in INTERFACES}


@pytest.mark.parametrize("name", wheels)
def test_the_built_wheel_fits(name: str) -> None:
    check_fits(wheels[name])


def make_copy() -> None:
    make_membership(StoreSettings.model_construct(), SystemClock(), CollectorRegistry())


def make_front() -> None:
    CompiledFront(connections_max=1, streams_max=1, metadata_bytes_max=8192)


@pytest.mark.parametrize(
    ("name", "use"), [("duetime_raft", make_copy), ("duetime_front", make_front), ("duetime_wire", is_compiled)]
)
def test_an_older_wheel_is_named(name: str, use: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels[name], "INTERFACE", INTERFACES[name] - 1)
    monkeypatch.setenv(VARIABLE, COMPILED)
    with pytest.raises((StartupError, InvalidArgument), match=f"{name} has interface {INTERFACES[name] - 1}, and"):
        use()
