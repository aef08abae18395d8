"""duetime.django.outbox: rows of Django's transactions, which the relay of `duetime.outbox` moves; and its admin."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.test import Client
from duetime import Finder, InvalidArgument, InvalidMessage, Message
from duetime.django import app
from duetime.django.outbox.databases import database_url
from duetime.django.outbox.models import OutboxRow
from duetime.django.outbox.writing import write
from duetime.outbox import Outbox
from duetime_core.testing import LocalCluster
from sqlalchemy import MetaData, create_engine, make_url, select
from sqlalchemy.orm import Session

from tests.frameworks.stall.tasks import pack

pytestmark = pytest.mark.usefixtures("database")
OTHER = "other"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def other(empty_database_url: str) -> Iterator[str]:
    """The URL of a further database of the project, with an outbox."""
    url = make_url(empty_database_url)
    settings = {"ENGINE": f"django.db.backends.{url.get_backend_name().replace('sqlite', 'sqlite3')}"}
    settings |= {"NAME": url.database or "", "USER": url.username or "", "PASSWORD": url.password or ""}
    settings |= {"HOST": url.host or "", "PORT": str(url.port or "")}
    connections.settings[OTHER] = {**connections.settings["default"], **settings}
    call_command("migrate", "duetime_outbox", database=OTHER, verbosity=0)
    yield empty_database_url
    connections[OTHER].close()
    del connections[OTHER], connections.settings[OTHER]


def rows() -> list[dict[str, Any]]:
    return list(OutboxRow.objects.using(OTHER).order_by("id").values())


def test_call_is_a_row_of_the_transaction(other: str) -> None:
    with transaction.atomic(OTHER):
        kept = pack.with_options(delay="1h").send_in(OTHER, "tea")
        with transaction.atomic(OTHER):
            pack.send_in(OTHER, "milk")
            transaction.set_rollback(True, OTHER)
    (row,) = rows()
    assert (row["message_id"], row["topic"], bytes(row["body"])) == (kept, "stall", b'{"name":"tea"}')
    assert row["due_at_ms"] - row["created_at_ms"] in range(3_600_000, 3_600_100)


MESSAGES = [
    Message("orders", b"a"),
    Message("orders", {"a": 1}, delay="1h", tags="pack", key="7", replace=True, max_wait="2h"),
    Message("orders", b"c", deliver_at=datetime.now(UTC) + timedelta(days=1), properties={"a": "\0"}, sharding_key="7"),
    Message("orders", b"d", id="ABC", expires=timedelta(hours=1), retry="1s,2s"),
]


def test_rows_are_those_of_the_outbox_of_sqlalchemy(other: str) -> None:
    for message in MESSAGES:
        write(OTHER, message)
    metadata = MetaData()
    outbox = Outbox(metadata)
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        outbox.send_many(session, MESSAGES)
        expected = [dict(row) for row in session.execute(select(outbox.table)).mappings()]
    engine.dispose()
    django_engine = create_engine(other)
    with django_engine.connect() as opened:
        found = [dict(row) for row in opened.execute(select(Outbox(MetaData()).table)).mappings()]
    django_engine.dispose()
    for one in found:
        # The relay casts either type to a text.
        one["options"] = one["options"] if isinstance(one["options"], dict) else json.loads(one["options"])
    same = expected[0].keys() - {"id", "created_at_ms", "due_at_ms", "message_id"}
    assert [{name: one[name] for name in same} for one in found] == [
        {name: one[name] for name in same} for one in expected
    ]
    assert [one["due_at_ms"] and one["due_at_ms"] - one["created_at_ms"] for one in found][:2] == [None, 3_600_000]
    assert found[2]["due_at_ms"] == expected[2]["due_at_ms"]
    assert found[3]["message_id"] == "ABC"


def test_relay_moves_the_rows(other: str, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with transaction.atomic(OTHER):
        ids = [pack.with_options(delay="1h").send_in(OTHER, name) for name in ("tea", "milk")]
    call_command("duetime_relay", database=OTHER, server=cluster.address, drain=True, as_json=True)
    assert '"sent": 2' in capsys.readouterr().out
    assert rows() == []
    with Finder(cluster.address) as finder:
        assert [finder.get(one).topic for one in ids] == ["stall", "stall"]


def test_commit_wakes_relays(other: str) -> None:
    url = make_url(other)
    if url.get_backend_name() == "sqlite":
        pytest.skip("SQLite has no notices: its relay polls")
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as listening:
        listening.execute("LISTEN duetime_outbox")
        pack.send_in(OTHER, "tea")
        assert [one.channel for one in listening.notifies(timeout=60, stop_after=1)] == ["duetime_outbox"]


def test_wrong_messages_fail_in_the_transaction(other: str) -> None:
    with pytest.raises(InvalidMessage, match="delay"):
        write(OTHER, Message("orders", b"", delay="soon"))
    assert rows() == []


def test_other_databases_are_rejected(database: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(connection._connections["default"]), "vendor", "mysql")
    with pytest.raises(InvalidArgument, match="using: the outbox needs PostgreSQL or SQLite, and 'default' is mysql"):
        pack.send_in("default", "tea")
    with pytest.raises(InvalidArgument, match="database: 'default' is mysql, neither PostgreSQL nor SQLite"):
        database_url("default")


def test_command_names_the_databases(database: object) -> None:
    with pytest.raises(CommandError, match="argument --database: invalid choice: 'nowhere'"):
        call_command("duetime_relay", "--database=nowhere")


def test_eager_mode_runs_calls_after_the_commit(database: object) -> None:
    with app.eager() as eager, transaction.atomic():
        pack.with_options(delay="1h").send_in("default", "tea")
        assert eager.pending == []
    assert len(eager.pending) == 1
    assert OutboxRow.objects.count() == 0


@pytest.fixture
def client(database: object) -> Iterator[Client]:
    user = get_user_model().objects.create_superuser("ann", password="secret")
    client = Client()
    client.force_login(user)
    yield client
    user.delete()
    OutboxRow.objects.all().delete()
    connection.close()


def faulty() -> OutboxRow:
    pack.send_in("default", "tea")
    OutboxRow.objects.update(state="failed", error="no such topic", attempts=3, handed_at_ms=1)
    return OutboxRow.objects.get()


def test_admin_lists_rows_without_bodies(client: Client) -> None:
    row = faulty()
    for path in ("", f"{row.pk}/change/"):
        page = client.get(f"/admin/duetime_outbox/outboxrow/{path}").content.decode()
        assert f'<a href="https://console.example.com/messages/{row.message_id}?topic=stall">' in page
        assert "no such topic" in page
        assert "&quot;tea&quot;" not in page
    assert client.post(f"/admin/duetime_outbox/outboxrow/{row.pk}/delete/", {"post": "yes"}).status_code == 403


def test_admin_ends_faulty_rows_alone(client: Client) -> None:
    row = faulty()
    pack.send_in("default", "milk")
    chosen = [str(one.pk) for one in OutboxRow.objects.all()]

    def act(action: str) -> str:
        form = {"action": action, "_selected_action": chosen}
        return client.post("/admin/duetime_outbox/outboxrow/", form, follow=True).content.decode()

    assert "1 will be sent" in act("send_again")
    row.refresh_from_db()
    assert (row.state, row.attempts, row.handed_at_ms, row.error) == ("waiting", 0, None, "")
    assert "0 deleted" in act("delete_as_sent")
    OutboxRow.objects.filter(pk=row.pk).update(state="doubtful")
    assert "1 deleted" in act("delete_as_sent")
    assert OutboxRow.objects.count() == 1


def test_admin_leads_to_the_console(client: Client) -> None:
    assert "/admin/duetime/consolelink/" in client.get("/admin/").content.decode()
    assert client.get("/admin/duetime/consolelink/").headers["Location"] == "https://console.example.com/"


def test_migrations_are_complete(database: object) -> None:
    call_command("makemigrations", "duetime", "duetime_outbox", check=True, dry_run=True, verbosity=0)
