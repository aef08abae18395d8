"""`duetime audit` against a real cluster."""

import json
import time

from tests.cli.cluster import deadline, run_duetime


def audit(*options: str) -> list[dict[str, object]]:
    done = run_duetime("audit", "--json", *options)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_acts_are_shown_the_newest_first(server: str) -> None:
    for name in ("audited-1", "audited-2"):
        assert run_duetime("topics", "create", name, "--queues", "1").returncode == 0
    assert run_duetime("groups", "delete", "audited-none").returncode == 0
    give_up = deadline()
    while len(found := audit("--since", "10m", "--method", "CreateTopic")) < 2:
        assert time.monotonic() < give_up
    assert [one["resource"] for one in found[:2]] == ["topic audited-2", "topic audited-1"]
    assert found[0]["status"] == "OK"
    assert found[0]["process"] == "gateway"
    assert audit("--user", "nobody-of-this-name") == []
    assert len(audit("--limit", "1")) == 1


def test_people_get_a_table(server: str) -> None:
    for name in ("audited-4", "audited-3"):
        assert run_duetime("topics", "create", name, "--queues", "1").returncode == 0
    give_up = deadline()
    while b"topic audited-3" not in (done := run_duetime("audit", "--limit", "1000")).stdout:
        assert time.monotonic() < give_up
    assert done.stdout.splitlines()[0].split() == [b"when", b"user", b"from", b"call", b"about", b"outcome"]
    more = run_duetime("audit", "--limit", "1")
    assert b"more events exist; raise --limit" in more.stderr
    none = run_duetime("audit", "--user", "nobody-of-this-name")
    assert none.stdout == b"the audit log has no event that matches the options\n"
    assert run_duetime("audit", "--user", "").returncode == 2
