"""`duetime context`, and which server and token a command takes: option, environment, context in use."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from duetime.cli import contexts, topics
from duetime.cli.app import run
from duetime.client.tokens import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, credentials_for
from duetime.client.trust import CA_VARIABLE
from duetime.v1 import gateway_pb2

pytestmark = pytest.mark.usefixtures("folder", "calls")
PROD, STAGING, OTHER = "127.0.0.1:9801", "127.0.0.1:9802", "127.0.0.1:9803"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DUETIME_CONFIG", str(tmp_path / "config"))
    for name in ("DUETIME_SERVER", TOKEN_VARIABLE, TOKEN_FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, str]]:
    """The server of each call, and the token that it would be shown."""
    made: list[tuple[str | None, str]] = []

    def call(server: str | None, method: str, request: Any) -> Any:
        metadata = credentials_for(server or "localhost:9800", None).metadata()
        made.append((server, metadata[0][1].removeprefix("Bearer ") if metadata else ""))
        return gateway_pb2.ListTopicsResponse()

    monkeypatch.setattr(topics, "call", call)
    return made


def add(*arguments: str) -> None:
    assert run(["context", "add", *arguments]) == 0


def test_a_context_names_the_ca_of_its_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch, calls: list[tuple[str | None, str]]
) -> None:
    seen: list[str | None] = []
    monkeypatch.setattr(topics, "call", lambda *_: seen.append(os.environ.get(CA_VARIABLE)) or answer())
    monkeypatch.delenv(CA_VARIABLE, raising=False)
    add("prod", "--server", PROD, "--tls-ca", "/etc/prod.crt")
    add("plain", "--server", OTHER)
    assert [run(["topics", "list", *words]) for words in ([], ["--context", "plain"])] == [0, 0]
    monkeypatch.setenv(CA_VARIABLE, "/etc/mine.crt")
    assert [run(["topics", "list", *words]) for words in ([], ["--context", "prod"])] == [0, 0]
    assert seen == ["/etc/prod.crt", None, "/etc/mine.crt", "/etc/prod.crt"]
    assert os.environ[CA_VARIABLE] == "/etc/mine.crt"


def answer() -> gateway_pb2.ListTopicsResponse:
    return gateway_pb2.ListTopicsResponse()


def test_a_context_is_added_used_shown_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    add("prod", "--server", PROD, "--token", "geheim")
    add("staging", "--server", STAGING)
    assert capsys.readouterr().out == "context prod is added and in use\ncontext staging is added\n"
    assert run(["context", "use", "staging"]) == 0
    assert run(["context", "list", "-o", "json"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    prod, staging = map(json.loads, lines)
    assert (prod["context"], prod["in_use"], prod["server"]) == ("prod", False, PROD)
    assert (staging["context"], staging["in_use"], staging["token"]) == ("staging", True, None)
    assert run(["context", "show", "prod"]) == 0
    assert f"server      {PROD}\ntoken       ********\n" in capsys.readouterr().out
    assert run(["context", "remove", "staging"]) == 0
    assert run(["context", "show"]) == 0
    assert "no context is in use" in capsys.readouterr().out
    assert run(["context", "remove", "staging"]) == 2
    assert "'staging' does not exist; there are prod" in capsys.readouterr().err


def test_no_token_is_printed_and_only_the_owner_reads_the_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add("prod", "--server", PROD, "--token", "geheim")
    for words in (["list"], ["list", "--json"], ["show"], ["show", "--json"], ["show", "-o", "yaml"]):
        assert run(["context", *words]) == 0
    assert "geheim" not in capsys.readouterr().out
    path = folder / contexts.FILE_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [one.name for one in folder.iterdir()] == [path.name]


def test_an_option_counts_more_than_the_environment_and_that_more_than_the_context(
    calls: list[tuple[str | None, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    add("prod", "--server", PROD)
    add("staging", "--server", STAGING)
    assert run(["topics"]) == 0
    assert run(["topics", "--context", "staging"]) == 0
    assert run(["topics", "--context", "staging", "list"]) == 0
    assert run(["topics", "--server", OTHER]) == 0
    assert run(["topics", "--server", OTHER, "list"]) == 0
    monkeypatch.setenv("DUETIME_SERVER", OTHER)
    assert run(["topics"]) == 0
    assert run(["topics", "--context", "prod"]) == 0
    servers = [server for server, _ in calls]
    assert servers == [PROD, STAGING, STAGING, OTHER, OTHER, OTHER, PROD]


def test_a_token_is_shown_to_its_server_only(
    calls: list[tuple[str | None, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("of-staging\n")
    add("prod", "--server", PROD, "--token", "of-prod")
    add("staging", "--server", STAGING, "--token-file", str(tmp_path / "token"))
    everywhere = ([], ["--context", "staging"], ["--server", OTHER], ["--server", OTHER, "list"])
    for words in (*everywhere, ["list", "--server", OTHER], ["list"], ["--context", "staging", "list"]):
        assert run(["topics", *words]) == 0
    monkeypatch.setenv(TOKEN_VARIABLE, "of-environment")
    for words in ([], ["--context", "staging"], ["--server", OTHER]):
        assert run(["topics", *words]) == 0
    tokens = [token for _, token in calls]
    assert tokens == [
        *("of-prod", "of-staging", "", "", "", "of-prod", "of-staging"),
        *("of-environment", "of-staging", "of-environment"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topics", "--context", "nosuch"], "'nosuch' does not exist; there is none yet"),
        (["topics", "--context", "a", "--server", PROD], "give either --server or --context"),
        (["topics", "--server", PROD, "list", "--context", "a"], "give either --server or --context"),
        (["context", "add", "a b", "--server", PROD], "is not 1 to 64 characters"),
        (["context", "add", "a", "--server", "non:sense"], "'non:sense' is not HOST:PORT"),
        (["context", "add", "a", "--server", PROD, "--token", ""], "--token is empty"),
        (
            ["context", "add", "a", "--server", PROD, "--token", "x", "--token-file", "y"],
            "give --token or --token-file",
        ),
        (["context", "use", "nosuch"], "'nosuch' does not exist"),
    ],
)
def test_wrong_use_changes_nothing(
    folder: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert said in capsys.readouterr().err
    assert not folder.exists()


def test_foreign_file_is_reported_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.mkdir()
    for text in ("{", "[]", '{"contexts": {"a": 5}}', '{"contexts": {"a": {}}}'):
        (folder / contexts.FILE_NAME).write_text(text)
        assert run(["topics"]) == 1
        assert "is not a file of contexts" in capsys.readouterr().err
