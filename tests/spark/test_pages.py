"""The text of reports."""

import pytest
from duetime_spark.pages import _audit


def test_an_audit_shows_each_part_of_the_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    parts = dict(
        zip(("expired", "pending", "restored", "dead", "cancelled", "replaced", "missing"), range(1, 8), strict=True)
    )
    row = {"shard": None, "level": None, "accepted": sum(parts.values()), **parts, "early": 0, "is_proven": True}
    _audit(
        {
            "lanes": [],
            "total": row,
            "violations": [],
            "violation_counts": {},
            "transactions": [],
            "transaction_violations": [],
            "schedules": [],
            "schedule_violations": [],
        }
    )
    heads, *rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    shown = dict(zip(heads[2:], rows[-1][1:], strict=True))
    assert {name: int(shown[name]) for name in parts} == parts
