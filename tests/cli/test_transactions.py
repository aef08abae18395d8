"""`duetime transactions`: output and exit codes."""

import io
import json
import sys
from typing import Any

import pytest
from duetime import Finder, Message, Prepared, Producer
from duetime.cli.app import run
from duetime.client.message import moment
from duetime.v1 import transactions_pb2 as pb

from tests.sdk.gateway import Gateway

OPEN, COMMITTED, ROLLED_BACK, GIVEN_UP = "open", "committed", "rolled back", "given up"


class Transactions:
    """Five of one group, `m0` to `m4` as their messages' ids end: `m3` was given up, the others are open."""

    def __init__(self, tap: Gateway, topic: str, group: str) -> None:
        self.tap, self.topic, self.group = tap, topic, group
        self.names = [f"{topic}-m{n}" for n in range(5)]
        messages = [
            Message(topic, b"body %d" % n, id=name, queue=1, delay="15m" if n == 4 else None)
            for n, name in enumerate(self.names)
        ]
        self.prepared_at = moment(tap.nodes.now_ms())
        with Producer(tap.node) as producer:
            prepared = producer.prepare_many(messages[3:4], group=group)
            tap.nodes.advance("11m")
            prepared[:0] = producer.prepare_many(messages[:3], group=group)
            prepared += producer.prepare_many(messages[4:], group=group)
        self.ids = [one.id for one in prepared if isinstance(one, Prepared)]
        with Finder(tap.node) as finder:
            while finder.transaction(self.ids[3]).state != GIVEN_UP:
                continue

    @property
    def states(self) -> list[str]:
        with Finder(self.tap.node) as finder:
            return [finder.transaction(one).state for one in self.ids]


@pytest.fixture
def transactions(threaded_tap: Gateway, topic: str, group: str, monkeypatch: pytest.MonkeyPatch) -> Transactions:
    monkeypatch.setenv("DUETIME_SERVER", threaded_tap.address)
    return Transactions(threaded_tap, topic, group)


def objects(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_open_and_given_up_ones_are_listed(transactions: Transactions, capsys: pytest.CaptureFixture[str]) -> None:
    ids, names, group, topic = transactions.ids, transactions.names, transactions.group, transactions.topic
    assert run(["transactions", "list", "--group", group]) == 0
    lines = sorted(capsys.readouterr().out.splitlines(), key=lambda line: line.split()[-1])
    assert len(lines) == 5
    (given_up,) = [line for line in lines if line.startswith("given up  ")]
    assert given_up.endswith(f"  0 checks  {names[3]}  {ids[3]}")
    (first,) = [line for line in lines if line.endswith(f"  {names[0]}  {ids[0]}")]
    assert first.startswith("open  ")
    assert f"  {group}  {topic}/1  0 checks  next " in first
    options = ["--group", group, "--topic", topic, "--state", "given-up", "--older-than", "1h", "--json"]
    assert run(["transactions", "list", *options]) == 0
    (found,) = objects(capsys)
    assert (found["id"], found["message_id"], found["group"], found["topic"]) == (ids[3], names[3], group, topic)
    assert (found["state"], found["checks"], found["next_check_at"]) == ("given up", 0, None)
    at = transactions.prepared_at.isoformat(timespec="milliseconds")
    assert found["prepared_at"] == at.replace("+00:00", "Z")
    request = transactions.tap.requests["ListTransactions"][-1]
    assert (request.group, request.topic, request.state) == (group, topic, pb.TRANSACTION_STATE_GIVEN_UP)
    assert request.prepared_before_ms > 0


def test_a_list_ends_at_its_limit(transactions: Transactions, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transactions", "list", "--group", transactions.group, "--limit", "4", "--json"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 4
    assert err == "duetime: more transactions exist; raise --limit\n"
    assert run(["transactions", "list", "--group", "others"]) == 0
    assert capsys.readouterr().out == "no transaction that matches the options is open or was given up\n"


def test_one_is_shown_with_its_message(transactions: Transactions, capsys: pytest.CaptureFixture[str]) -> None:
    transaction, name = transactions.ids[1], transactions.names[1]
    for key in transaction, name:
        assert run(["transactions", "show", key]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[:6] == [
            f"transaction {transaction}",
            f"message     {name}",
            f"group       {transactions.group}",
            "state       open",
            f"topic       {transactions.topic}/1",
            "shard       0",
        ]
        assert lines[-2:] == ["body", "  body 1"]
    assert run(["transactions", "commit", name, "--yes"]) == 0
    capsys.readouterr()
    for key in transaction, name:
        assert run(["transactions", "show", key, "--json"]) == 0
        (found,) = objects(capsys)
        assert (found["id"], found["state"], found["body"]) == (transaction, "committed", "body 1")
        assert "offset" in found["receipt"]
    assert run(["transactions", "show", "missing"]) == 1
    assert "there is no such transaction: missing is" in capsys.readouterr().err


def test_a_message_is_shown_with_its_transaction(
    transactions: Transactions, capsys: pytest.CaptureFixture[str]
) -> None:
    ids, names = transactions.ids, transactions.names
    assert run(["show", names[1]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"id          {names[1]}", "state       prepared"]
    assert lines[3:5] == [f"transaction {ids[1]}", f"group       {transactions.group}"]
    assert lines[5].startswith("prepared    ")
    assert lines[6] == "checks      0"
    assert run(["show", names[3], "--json"]) == 0
    (found,) = objects(capsys)
    assert (found["state"], found["transaction"]["id"], found["transaction"]["checks"]) == ("given up", ids[3], 0)
    assert run(["transactions", "rollback", names[2], "--yes"]) == 0
    assert run(["transactions", "commit", names[0], "--yes"]) == 0
    capsys.readouterr()
    assert run(["show", names[2]]) == 0
    assert "state       rolled back\n" in capsys.readouterr().out
    assert run(["show", names[0], "--json"]) == 0
    (found,) = objects(capsys)
    assert (found["state"], found["transaction"]) == ("stored", None)


def test_transactions_are_ended_by_an_operator(transactions: Transactions, capsys: pytest.CaptureFixture[str]) -> None:
    ids, names = transactions.ids, transactions.names
    assert run(["transactions", "commit", names[4], "--yes"]) == 0
    assert capsys.readouterr().out.startswith(f"committed  {names[4]}  due ")
    assert run(["transactions", "rollback", ids[3], names[0], "--yes"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"rolled back  {ids[3]}", f"rolled back  {names[0]}"]
    assert err == "duetime: rolled back 2\n"
    assert transactions.states == [ROLLED_BACK, OPEN, OPEN, ROLLED_BACK, COMMITTED]
    assert all(request.given_up for request in transactions.tap.requests["EndTransaction"])
    # The first decision is final.
    assert run(["transactions", "commit", ids[3], "missing", names[1], "--yes"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"rolled back  {ids[3]}  (before)",
        "not found  missing  (there is no such transaction: missing is neither a transaction's id nor a message's)",
        f"committed  {names[1]}",
    ]
    assert err == "duetime: rolled back 1, not found 1, committed 1\n"
    assert run(["transactions", "commit", names[2], "missing", "--yes", "--json"]) == 1
    first, second = objects(capsys)
    assert (first["id"], first["result"], first["transaction"]) == (names[2], "committed", ids[2])
    with Finder(transactions.tap.node) as finder:
        assert finder.get(names[2]).offset == first["offset"]
    assert (second["id"], second["result"], second["error"]["reason"]) == (
        "missing",
        "not found",
        "TRANSACTION_NOT_FOUND",
    )


def test_id_of_two_topics_needs_its_topic(transactions: Transactions, capsys: pytest.CaptureFixture[str]) -> None:
    name, topic, other = transactions.names[0], transactions.topic, f"{transactions.topic}-other"
    with Producer(transactions.tap.node) as producer:
        producer.prepare_many([Message(other, b"x", id=name)], group=transactions.group)
    refused = f"is known in the topics {topic}, {other}: name one with --topic"
    assert run(["transactions", "show", name]) == 1
    assert refused in capsys.readouterr().err
    assert run(["transactions", "rollback", name, "--yes"]) == 1
    assert refused in capsys.readouterr().out
    assert run(["transactions", "show", name, "--topic", topic, "--json"]) == 0
    assert objects(capsys)[0]["id"] == transactions.ids[0]
    assert run(["transactions", "rollback", name, "--topic", topic, "--yes"]) == 0
    with Finder(transactions.tap.node) as finder:
        assert finder.transaction(name, topic=other).state == OPEN
    assert transactions.states[0] == ROLLED_BACK


def test_ids_come_from_standard_input(
    transactions: Transactions, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = transactions.ids[0], transactions.names[1]
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{first}\n\n {second} \n"))
    assert run(["transactions", "rollback", "-", "--yes"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"rolled back  {first}", f"rolled back  {second}"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_person_is_asked_before(
    transactions: Transactions, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, names, group = transactions.ids, transactions.names, transactions.group
    monkeypatch.setattr(sys, "stdin", Terminal("n\ny\n"))
    assert run(["transactions", "commit", names[3]]) == 130
    question = f"Commit transaction {ids[3]} of {group}, given up, to topic {transactions.topic}? [y/N]"
    assert question in capsys.readouterr().out
    assert run(["transactions", "rollback", names[3], names[4]]) == 0
    assert f"Roll back 2 transactions of {group}? [y/N]" in capsys.readouterr().out
    assert transactions.states == [OPEN, OPEN, OPEN, ROLLED_BACK, ROLLED_BACK]


@pytest.mark.parametrize(
    "arguments",
    [
        ["commit", "m0"],
        ["commit", "-"],
        ["commit", "--yes"],
        ["commit", "m0", "--topic", "", "--yes"],
        ["list", "--group", ""],
        ["list", "--state", "committed"],
        ["list", "--limit", "0"],
    ],
)
def test_unclear_requests_are_rejected(
    threaded_tap: Gateway, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("DUETIME_SERVER", threaded_tap.address)
    assert run(["transactions", *arguments]) == 2
    assert not threaded_tap.arrived


def test_a_malformed_length_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transactions", "list", "--older-than", "soon"]) == 2
    assert "--older-than 'soon' is not a length such as 90s" in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transactions"]) == 0
    assert "duetime transactions list --group billing --older-than 1h" in capsys.readouterr().out
