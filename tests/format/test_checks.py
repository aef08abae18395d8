"""Checks that producers have heard, as bytes."""

import numpy as np
import pytest
from duetime_format import checks, record
from duetime_format.errors import DamagedBytes


def test_checks_heard_come_back() -> None:
    data = checks.heard_record(np.array([7, 1 << 40]), np.array([1_700_000_000_000, 5]), np.array([1, 15]), 9, 0)
    found = record.decode(data)
    assert (found.topic, found.queue, found.born_at_ms) == ("DT_CHECKS", 0, 9)
    assert checks.decode(found.body).tolist() == [(7, 1_700_000_000_000, 1), (1 << 40, 5, 15)]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (bytes(17), "17 bytes are not whole rows of 18"),
        (bytes(18), "half message 0 with 0 checks"),
        (b"\xff" * 18, "half message -1 with 65535 checks"),
    ],
)
def test_bytes_that_are_no_checks_are_damage(body: bytes, text: str) -> None:
    with pytest.raises(DamagedBytes, match=text):
        checks.decode(body)
