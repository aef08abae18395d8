"""`duetime outbox`: relay, status and resolve, as processes and in this one."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from duetime import Message
from duetime.cli.app import run
from duetime.outbox import Rows
from duetime_core.testing import LocalCluster

from tests.outbox.shop import SOON_S, Shop, new_topic, stored


@pytest.fixture
def database(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> str:
    url = shop.engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("DUETIME_OUTBOX_DATABASE", url)
    return url


@pytest.mark.usefixtures("database")
def test_relay_moves_rows_until_a_signal_and_says_how_many(shop: Shop, cluster: LocalCluster) -> None:
    topic = new_topic()
    shop.order(Message(topic, b"a"), Message(topic, b"b", queue=99))
    command = [sys.executable, "-m", "duetime", "outbox", "relay", "--server", cluster.address, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "duetime: moving rows of duetime_outbox\n"
    # It logs the failed row.
    assert " is failed: queue" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=SOON_S)
    assert (process.returncode, errors) == (0, "")
    assert json.loads(output) == {"sent": 1, "repeated": 0, "failed": 1, "doubtful": 0, "put_off": 0}
    assert stored(cluster, topic) == [b"a"]
    assert [row.state for row in shop.rows()] == ["failed"]


@pytest.mark.usefixtures("database")
def test_status_counts_rows_and_lists_the_faulty(
    shop: Shop, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["outbox", "status"]) == 0
    assert capsys.readouterr().out == "0 waiting; 0 of them tried before\n0 failed, 0 doubtful, 0 sent and kept\n"
    topic = new_topic()
    bad, _ = shop.order(Message(topic, b"b", queue=99), Message(topic, b"a"))
    shop.drain(cluster.address, keep="1h")
    shop.order(Message(topic, b"c"))
    assert run(["outbox", "status"]) == 1
    printed = capsys.readouterr().out
    assert "1 waiting, the oldest for " in printed
    assert "1 failed, 0 doubtful, 1 sent and kept" in printed
    assert printed.splitlines()[-1].split()[:3] == [bad, topic, "failed"]
    assert run(["outbox", "status", "--json"]) == 1
    status = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {name: status[name] for name in ("waiting", "retried", "failed", "doubtful", "sent")} == {
        "waiting": 1, "retried": 0, "failed": 1, "doubtful": 0, "sent": 1,
    }  # fmt: skip
    assert [(one["id"], one["state"]) for one in status["faulty"]] == [(bad, "failed")]


@pytest.mark.usefixtures("database")
def test_operator_resolves_rows(shop: Shop, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    ids = shop.order(*(Message(new_topic(), b"x", queue=99) for _ in range(3)))
    shop.drain(cluster.address)
    assert run(["outbox", "resolve", ids[0], "--sent"]) == 0
    assert capsys.readouterr().out == "1 deleted\n"
    assert run(["outbox", "resolve", *ids[:2], "--resend"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "1 will be sent\n"
    assert printed.err == f"duetime: neither failed nor doubtful: {ids[0]}\n"
    with shop.engine.begin() as connection:
        status = Rows(shop.outbox).status(connection)
    assert (status.waiting, status.failed) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["status", "--database", "nonsense"], 2, "database: Could not parse"),
        (["status", "--database", "oracle://db"], 2, "database: "),
        (["status", "--database", "sqlite:///{path}/none/shop.db"], 1, "database: unable to open database file"),
        (["status", "--database", "sqlite:///{path}/shop.db"], 1, "the database has no table duetime_outbox"),
        (["status", "--database", "sqlite:///{path}/shop.db", "--table", "events"], 1, "has no table events"),
        (["status", "--database", "postgresql://u@127.0.0.1:1/x"], 1, "database: connection failed"),
        (["resolve", "ID", "--database", "sqlite:///{path}/shop.db"], 2, "give --resend or --sent"),
        (["relay", "--database", "sqlite:///{path}/shop.db", "--batch", "0"], 2, "--batch"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], code: int, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["outbox", *(each.format(path=tmp_path) for each in arguments)]) == code
    printed = capsys.readouterr().err
    assert text in printed
    assert printed.count("\n") == 1


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ([], ["relay"], ["status"], ["resolve"]):
        assert run(["outbox", *command, "--help"]) == 0
        assert "Examples:" in capsys.readouterr().out
