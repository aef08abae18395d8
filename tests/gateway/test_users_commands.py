"""`duetime users` and `duetime grants`, as they are typed."""

import asyncio
import base64
import json
import os
import pwd
import secrets
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from duetime.cli.app import run
from duetime_core.audit.events import AuditedCall
from duetime_core.errors import FailedPrecondition
from duetime_core.metadata import AuditFilter, AuditTable, Database, upgrade
from duetime_core.metadata.users import GRANTS_OF_A_USER_MAX, TOKENS_OF_A_USER_MAX
from duetime_gateway.access.tokens import parse_token
from duetime_gateway.commands import shared

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    found = f"sqlite:///{tmp_path / 'meta.db'}"
    upgrade(found)
    monkeypatch.setenv("DUETIME_DATABASE_URL", found)
    return found


@pytest.fixture
def typed(url: str, capsys: pytest.CaptureFixture[str]) -> Run:
    def work(*words: str) -> tuple[int, str, str]:
        code = run(list(words))
        out, err = capsys.readouterr()
        return code, out, err

    return work


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_missing_default_database_names_the_directory_of_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["users", "list"]) == 1
    expected = "no duetime-data/metadata.db here: run this in the directory in which `duetime up` runs"
    assert capsys.readouterr().err == f"duetime: {expected}, or give --database-url\n"


def test_token_alone_goes_to_standard_output_and_is_shown_once(typed: Run, tmp_path: Path) -> None:
    code, out, err = typed("users", "create", "shop")
    token = parse_token(out.strip())
    assert (code, bool(token)) == (0, True)
    assert token is not None
    assert "shown only once" in err
    for words in (
        ("users",),
        ("users", "list"),
        ("users", "show", "shop"),
        ("users", "--json"),
        ("users", "list", "--json"),
        ("users", "show", "shop", "--json"),
    ):
        code, out, _ = typed(*words)
        assert code == 0
        assert token.secret not in out
        assert "scrypt" not in out
    assert token.secret.encode() not in (tmp_path / "meta.db").read_bytes()


def test_in_a_gateways_container_they_work_on_the_gateways_database(
    url: str, typed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DUETIME_DATABASE_URL")
    monkeypatch.setenv("DUETIME_GATEWAY_DATABASE_URL", url)
    assert typed("users", "create", "ops", "--admin")[0] == 0
    assert "ops" in typed("users", "--database-url", url)[1]


def test_rotation_gives_the_old_token_its_time(typed: Run) -> None:
    _, out, _ = typed("users", "create", "shop", "--json")
    old = objects(out)[0]["made"]
    assert old["ends_at"] is None
    _, out, _ = typed("users", "rotate", "shop", "--old-ends", "2h", "--expires", "90d", "--json")
    new = objects(out)[0]["made"]
    _, out, _ = typed("users", "show", "shop", "--json")
    ends = {token["id"]: token["ends_at"] for token in objects(out)[0]["tokens"]}
    assert ends.keys() == {old["id"], new["id"]}
    assert None is not ends[old["id"]] < ends[new["id"]]


def test_revoked_users_are_restored_with_their_tokens(typed: Run) -> None:
    typed("users", "create", "shop")
    assert typed("users", "revoke", "shop")[0] == 0
    code, _, err = typed("users", "rotate", "shop")
    assert (code, "is revoked; restore it first" in err) == (1, True)
    assert typed("users", "restore", "shop")[0] == 0
    _, out, _ = typed("users", "show", "shop", "--json")
    shown = objects(out)[0]
    assert (shown["revoked"], len(shown["tokens"])) == (False, 1)
    assert typed("users", "revoke", "shop", "--token", shown["tokens"][0]["id"])[0] == 0
    code, _, err = typed("users", "revoke", "shop", "--token", shown["tokens"][0]["id"])
    assert (code, "has no token" in err) == (1, True)
    assert typed("users", "delete", "shop")[0] == 0
    assert typed("users", "delete", "shop")[0] == 1


def test_grants_are_added_once_listed_and_removed(typed: Run) -> None:
    typed("users", "create", "shop")
    for _ in range(2):
        assert typed("grants", "add", "shop", "receive", "orders-*", "--group", "bill*")[0] == 0
    typed("users", "create", "ops", "--admin")
    _, out, _ = typed("grants", "--json")
    assert objects(out) == [
        {"user": "ops", "right": "admin", "on": None, "pattern": "*"},
        {"user": "shop", "right": "receive", "on": "group", "pattern": "bill*"},
        {"user": "shop", "right": "receive", "on": "topic", "pattern": "orders-*"},
    ]
    assert typed("grants", "remove", "shop", "receive", "orders-*")[0] == 0
    _, out, _ = typed("grants", "list", "shop", "--json")
    assert [one["pattern"] for one in objects(out)] == ["bill*"]
    assert typed("grants", "remove", "shop", "receive", "orders-*")[0] == 1


@pytest.mark.parametrize(
    ("words", "ended", "why"),
    [
        (("users", "create", "a b"), 2, "without blanks"),
        (("users", "create", "x" * 121), 2, "1 to 120"),
        (("users", "create", "shop"), 1, "exists"),
        (("users", "create", "new", "--expires", "0s"), 2, "is never valid"),
        (("users", "show", "nobody"), 1, "there is no user nobody"),
        (("users", "rotate", "group:ops"), 2, "has no tokens"),
        (("users", "add-key", "group:ops"), 2, "has no keys"),
        (("users", "add-key", "shop"), 1, "DUETIME_SECRETS_KEY is not set"),
        (("grants", "add", "shop", "fly", "orders"), 2, "is not a right"),
        (("grants", "add", "shop", "send"), 2, "name some"),
        (("grants", "add", "shop", "send", "[a]"), 2, "characters of"),
        (("grants", "add", "shop", "admin", "orders"), 2, "takes no pattern"),
        (("grants", "add", "nobody", "admin"), 1, "there is no user nobody"),
        (("users", "--database-url", "sqlite:////nowhere/meta.db"), 1, "does not exist"),
    ],
)
def test_fault_is_one_line(
    typed: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], ended: int, why: str
) -> None:
    monkeypatch.delenv("DUETIME_SECRETS_KEY", raising=False)
    typed("users", "create", "shop")
    code, out, err = typed(*words)
    assert (code, out) == (ended, "")
    assert why in err
    assert len(err.splitlines()) == 1


def test_secret_key_is_shown_once_and_kept_encrypted(
    typed: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DUETIME_SECRETS_KEY", base64.b64encode(secrets.token_bytes(32)).decode())
    typed("users", "create", "shop")
    _, out, _ = typed("users", "add-key", "shop", "--json")
    made = objects(out)[0]
    _, out, _ = typed("users", "show", "shop", "--json")
    assert [key["access_key"] for key in objects(out)[0]["keys"]] == [made["access_key"]]
    assert made["secret_key"] not in out
    assert made["secret_key"].encode() not in (tmp_path / "meta.db").read_bytes()
    assert typed("users", "delete-key", made["access_key"])[0] == 0
    assert typed("users", "delete-key", made["access_key"])[0] == 1
    monkeypatch.setenv("DUETIME_SECRETS_KEY", "short")
    code, _, err = typed("users", "add-key", "shop")
    assert (code, "is not 32 bytes" in err) == (1, True)


def test_user_has_as_many_tokens_and_grants_as_the_limits_say(typed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime_gateway.commands.users.hash_of", lambda secret: "scrypt$")
    typed("users", "create", "shop")
    codes = [typed("users", "rotate", "shop")[0] for _ in range(TOKENS_OF_A_USER_MAX)]
    assert codes == [0] * (TOKENS_OF_A_USER_MAX - 1) + [1]
    monkeypatch.setattr("duetime_core.metadata.users.GRANTS_OF_A_USER_MAX", 3)
    codes = [typed("grants", "add", "shop", "send", f"topic-{number}")[0] for number in range(4)]
    assert codes == [0, 0, 0, 1]
    assert GRANTS_OF_A_USER_MAX > 3


def test_each_command_has_help_with_an_example(typed: Run) -> None:
    for group, names in (
        ("users", ("create", "show", "rotate", "revoke", "restore", "delete", "add-key", "delete-key")),
        ("grants", ("list", "add", "remove")),
    ):
        for words in ((group,), *((group, name) for name in names)):
            _, out, _ = typed(*words, "--help")
            assert f"duetime {' '.join(words)}" in out.partition("Examples:")[2], words


async def audited(url: str) -> list[AuditedCall]:
    database = Database(url)
    await database.start()
    try:
        page = await AuditTable(database).page(AuditFilter(), 1_000)
    finally:
        await database.stop()
    assert {row.process for row in page.rows} <= {"command"}
    return [row.event for row in reversed(page.rows)]


async def test_audit_log_has_changes_and_no_reads(typed: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUETIME_SECRETS_KEY", base64.b64encode(secrets.token_bytes(32)).decode())
    type_ = partial(asyncio.to_thread, typed)
    created = parse_token((await type_("users", "create", "ops", "--admin"))[1].strip())
    rotated = parse_token((await type_("users", "rotate", "ops"))[1].strip())
    assert created is not None
    assert rotated is not None
    key = objects((await type_("users", "add-key", "ops", "--json"))[1])[0]
    for words in (
        ("users", "create", "ops"),
        ("users", "revoke", "ops", "--token", str(created)),
        ("users", "revoke", "ops", "--token", created.id),
        ("users", "delete-key", key["secret_key"]),
        ("users", "delete-key", key["access_key"]),
        ("grants", "add", "ops", "send", "orders-*", "--group", "billing"),
        ("grants", "remove", "ops", "admin"),
        ("users", "revoke", "ops"),
        ("users", "restore", "ops"),
        ("users", "show", "ops"),
        ("users",),
        ("grants",),
        ("users", "delete", "ops"),
    ):
        await type_(*words)
    events = await audited(url)
    assert [(one.method.removeprefix("command/"), one.resource, one.status, one.reason) for one in events] == [
        ("users create", "user ops, admin", "OK", ""),
        ("users rotate", f"user ops, new token {rotated.id}", "OK", ""),
        ("users add-key", f"user ops, access key {key['access_key']}", "OK", ""),
        ("users create", "user ops", "ALREADY_EXISTS", "USER_EXISTS"),
        ("users revoke", f"user ops, token dt_{created.id}_***", "NOT_FOUND", "TOKEN_NOT_FOUND"),
        ("users revoke", f"user ops, token {created.id}", "OK", ""),
        ("users delete-key", f"access key {key['access_key']}", "OK", ""),
        ("grants add", "user ops, send: topics orders-*, groups billing", "OK", ""),
        ("grants remove", "user ops, admin", "OK", ""),
        ("users revoke", "user ops", "OK", ""),
        ("users restore", "user ops", "OK", ""),
        ("users delete", "user ops", "OK", ""),
    ]
    me = pwd.getpwuid(os.getuid()).pw_name
    assert {(one.user, one.host) for one in events} == {(me, socket.gethostname())}
    told = repr(events)
    assert [one for one in (created.secret, rotated.secret, key["secret_key"]) if one in told] == []


async def test_change_that_its_audit_row_can_t_join_is_not_made(
    typed: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(session: object, rows: object) -> None:
        raise FailedPrecondition("no room")

    monkeypatch.setattr(shared, "add_rows", fail)
    code, _, err = await asyncio.to_thread(typed, "users", "create", "shop")
    assert (code, "no room" in err) == (1, True)
    monkeypatch.undo()
    code, _, err = await asyncio.to_thread(typed, "users", "show", "shop", "--database-url", url)
    assert (code, "there is no user shop" in err) == (1, True)
