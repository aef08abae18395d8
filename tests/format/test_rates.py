"""Rates of deliveries as text."""

import pytest
from duetime.v1.consumer_pb2 import DeliveryRate
from duetime_format import rates


@pytest.mark.parametrize(
    ("text", "count", "per_ms", "burst", "at_once"),
    [
        ("50/s", 50, 1_000, 0, 50),
        ("3000/m", 3_000, 60_000, 0, 50),
        ("100/h", 100, 3_600_000, 0, 1),
        ("1000000/d,burst=7", 1_000_000, 86_400_000, 7, 7),
    ],
)
def test_rate_is_parsed_and_written(text: str, count: int, per_ms: int, burst: int, at_once: int) -> None:
    rate = DeliveryRate()
    rates.fill(rate, text)
    assert (rate.count, rate.per_ms, rate.burst) == (count, per_ms, burst)
    assert (rates.written(rate), rates.burst_of(rate)) == (text, at_once)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' is not a rate such as 50/s"),
        ("50", "is not a rate such as 50/s"),
        ("0.5/s", "is not a rate such as 50/s"),
        ("50/w", "units s, m, h, d"),
        ("-1/s", "is not a rate such as 50/s"),
        ("0/s", "'0/s': count 0 is not within 1 and 1000000"),
        ("1000001/s", "count 1000001 is not within 1 and 1000000"),
        ("1/s,burst=0", "burst=0 lets no message through"),
        ("1/s,burst=1000001", "burst 1000001 is not within 0 and 1000000"),
    ],
)
def test_bad_rate_is_rejected_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match="^.*" + why.replace("(", r"\(")):
        rates.fill(DeliveryRate(), text)


def test_faults_name_every_field() -> None:
    found = rates.faults(DeliveryRate(count=0, per_ms=7, burst=-1), "limit.rate.")
    assert [one.field for one in found] == ["limit.rate.count", "limit.rate.per_ms", "limit.rate.burst"]
    assert rates.written(DeliveryRate(count=3, per_ms=7)) == "3/7ms"
