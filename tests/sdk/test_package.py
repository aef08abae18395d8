"""The package's interface: all names load, and only on demand."""

import subprocess
import sys

import duetime
import pytest


@pytest.mark.parametrize("name", duetime.__all__)
def test_every_name_of_the_package_loads(name: str) -> None:
    assert getattr(duetime, name) is not None
    assert name in dir(duetime)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        duetime.Nonsense  # noqa: B018


def test_the_contract_alone_does_not_load_the_client() -> None:
    code = "import sys, duetime.v1.message_pb2; print('grpc' in sys.modules, 'duetime.client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False False\n"
