"""`duetime transactions` against a fake gateway: what it prints, and its exit codes."""

import io
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from duetime import Message, Prepared, Producer
from duetime.cli.app import run
from duetime.client.message import moment

from tests.sdk.fake_transactions import COMMITTED, GIVEN_UP, NOW_MS, OPEN, ROLLED_BACK, FakeTransactions
from tests.sdk.threaded import served


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTransactions]:
    """On an event loop in a thread of its own; `m0` to `m4` are open, but for `m3`, which was given up."""
    gateway = FakeTransactions()
    with served(gateway):
        monkeypatch.setenv("DUETIME_SERVER", gateway.address)
        messages = [Message("orders", b"body %d" % n, id=f"m{n}", delay="15m" if n == 4 else None) for n in range(5)]
        with Producer(gateway.address) as producer:
            assert all(isinstance(one, Prepared) for one in producer.prepare_many(messages, group="billing"))
        gateway.halves["t3"].state = GIVEN_UP
        gateway.halves["t3"].checks = 15
        yield gateway


def objects(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def states(gateway: FakeTransactions) -> list[int]:
    return [half.state for half in gateway.halves.values()]


def test_open_and_given_up_ones_are_listed(gateway: FakeTransactions, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transactions", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("open  ")
    assert lines[0].endswith("  m0  t0")
    assert "  billing  orders/1  0 checks  next " in lines[0]
    assert lines[3].startswith("given up  ")
    assert lines[3].endswith("  15 checks  m3  t3")
    options = ["--group", "billing", "--topic", "orders", "--state", "given-up", "--older-than", "1h", "--json"]
    assert run(["transactions", "list", *options]) == 0
    (found,) = objects(capsys)
    assert (found["id"], found["message_id"], found["group"], found["topic"]) == ("t3", "m3", "billing", "orders")
    assert (found["state"], found["checks"], found["next_check_at"]) == ("given up", 15, None)
    assert found["prepared_at"] == moment(NOW_MS).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    request = gateway.lists[-1]
    assert (request.group, request.topic, request.state) == ("billing", "orders", GIVEN_UP)
    assert request.prepared_before_ms > 0


def test_a_list_ends_at_its_limit(gateway: FakeTransactions, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transactions", "list", "--limit", "4", "--json"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 4
    assert err == "duetime: there are more; see --limit\n"
    assert run(["transactions", "list", "--group", "others"]) == 0
    assert capsys.readouterr().out == "no transaction that meets the options is open or was given up\n"


@pytest.mark.parametrize("key", ["t1", "m1"])
def test_one_is_shown_with_its_message(gateway: FakeTransactions, capsys: pytest.CaptureFixture[str], key: str) -> None:
    assert run(["transactions", "show", key]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:6] == [
        "transaction t1",
        "message     m1",
        "group       billing",
        "state       open",
        "topic       orders/1",
        "shard       0",
    ]
    assert lines[-2:] == ["body", "  body 1"]
    gateway.halves["t1"].state = COMMITTED
    assert run(["transactions", "show", key, "--json"]) == 0
    (found,) = objects(capsys)
    assert (found["id"], found["state"], found["body"]) == ("t1", "committed", "body 1")
    assert "offset" in found["receipt"]
    assert run(["transactions", "show", "none"]) == 1
    assert "no transaction none" in capsys.readouterr().err


def test_a_message_is_shown_with_its_transaction(gateway: FakeTransactions, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "m1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["id          m1", "state       prepared"]
    assert lines[3:5] == ["transaction t1", "group       billing"]
    assert lines[5].startswith("prepared    ")
    assert lines[6] == "checks      0"
    assert run(["show", "m3", "--json"]) == 0
    (found,) = objects(capsys)
    transaction = found["transaction"]
    assert (found["state"], transaction["id"], transaction["checks"]) == ("given up", "t3", 15)
    gateway.halves["t2"].state, gateway.halves["t4"].state = ROLLED_BACK, COMMITTED
    assert run(["show", "m2"]) == 0
    assert "state       rolled back\n" in capsys.readouterr().out
    assert run(["show", "m4", "--json"]) == 0
    (found,) = objects(capsys)
    assert (found["state"], found["transaction"]) == ("stored", None)


def test_transactions_are_ended_by_an_operator(gateway: FakeTransactions, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transactions", "commit", "m4", "--yes"]) == 0
    assert capsys.readouterr().out.startswith("committed  m4  due ")
    assert run(["transactions", "rollback", "t3", "m0", "--yes"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == ["rolled back  t3", "rolled back  m0"]
    assert err == "duetime: rolled back 2\n"
    assert states(gateway) == [ROLLED_BACK, OPEN, OPEN, ROLLED_BACK, COMMITTED]
    assert all(request.given_up for request in gateway.ends)
    # What was decided first counts.
    assert run(["transactions", "commit", "t3", "none", "m1", "--yes"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "rolled back  t3  (before)",
        "not found  none  (no transaction none)",
        "committed  m1",
    ]
    assert err == "duetime: rolled back 1, not found 1, committed 1\n"
    assert run(["transactions", "commit", "m2", "none", "--yes", "--json"]) == 1
    first, second = objects(capsys)
    assert (first["id"], first["result"], first["transaction"], first["offset"]) == ("m2", "committed", "t2", 7)
    assert (second["id"], second["result"], second["error"]["reason"]) == (
        "none",
        "not found",
        "TRANSACTION_NOT_FOUND",
    )


def test_ids_come_from_standard_input(
    gateway: FakeTransactions, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("t0\n\n m1 \n"))
    assert run(["transactions", "rollback", "-", "--yes"]) == 0
    assert capsys.readouterr().out.splitlines() == ["rolled back  t0", "rolled back  m1"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_person_is_asked_before(
    gateway: FakeTransactions, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("n\ny\n"))
    assert run(["transactions", "commit", "m3"]) == 130
    assert "Commit transaction t3 of billing, given up, to topic orders? [y/N]" in capsys.readouterr().out
    assert run(["transactions", "rollback", "m3", "m4"]) == 0
    assert "Roll back 2 transactions of billing? [y/N]" in capsys.readouterr().out
    assert states(gateway) == [OPEN, OPEN, OPEN, ROLLED_BACK, ROLLED_BACK]


@pytest.mark.parametrize(
    "arguments",
    [
        ["commit", "m0"],
        ["commit", "-"],
        ["commit", "--yes"],
        ["list", "--group", ""],
        ["list", "--state", "committed"],
        ["list", "--limit", "0"],
    ],
)
def test_what_is_not_clear_is_refused(
    gateway: FakeTransactions, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(["transactions", *arguments]) == 2
    assert gateway.ends == []


def test_a_malformed_length_is_refused(gateway: FakeTransactions, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transactions", "list", "--older-than", "soon"]) == 2
    assert "--older-than 'soon' is no length such as 90s" in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transactions"]) == 0
    assert "duetime transactions list --group billing --older-than 1h" in capsys.readouterr().out
