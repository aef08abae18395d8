"""duetime.django in the tests' project: settings, sends with transactions, connections around tasks."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.test import override_settings
from django.utils.connection import ConnectionDoesNotExist
from duetime import InvalidArgument, Middleware, Token
from duetime.client.tasks.eager import EagerQueue
from duetime.django import app
from duetime.django.apps import check_configuration
from duetime.django.configuration import configuration

from tests.frameworks.stall import tasks
from tests.frameworks.stall.models import Parcel

pytestmark = pytest.mark.usefixtures("database")


class Silent(Middleware):
    pass


@pytest.fixture
def eager() -> Iterator[EagerQueue]:
    tasks.packed.clear()
    with app.eager() as eager:
        yield eager
    Parcel.objects.all().delete()
    connection.close()


def test_tasks_of_installed_apps_are_found() -> None:
    assert app.name == "stall"
    assert set(app.tasks) == {"pack", "pack_async"}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, ['DUETIME is missing: DUETIME = {"NAME": "shop"}']),
        ("shop", ["DUETIME is str, not a dict"]),
        ({}, ["DUETIME has no NAME"]),
        ({"NAME": ""}, ["DUETIME: group: is empty"]),
        ({"NAME": "shop", "SERVR": "a"}, ["DUETIME has the unknown key 'SERVR'; did you mean SERVER?"]),
        (
            {"NAME": "shop", "x": 1},
            ["unknown key 'x'; known: NAME, SERVER, TOKEN, TLS, UNHANDLED, NAMED_BY, MIDDLEWARE, CONSOLE"],
        ),
        ({"NAME": "shop", "SERVER": "a:b"}, ["DUETIME: server: 'a:b' is not HOST:PORT"]),
        ({"NAME": "shop", "UNHANDLED": "drop"}, ["unhandled: 'drop' is neither 'retry' nor 'reject'"]),
        ({"NAME": "shop", "NAMED_BY": "KEYS"}, ["DUETIME: named_by: KEYS is a system property"]),
        ({"NAME": "shop", "NAMED_BY": 5}, ["DUETIME: named_by: 5 is not the name of a property"]),
        ({"NAME": "shop", "CONSOLE": "console"}, ["DUETIME['CONSOLE'] is 'console', not a URL such as https://"]),
        ({"NAME": "shop", "MIDDLEWARE": "a.B"}, ["DUETIME['MIDDLEWARE'] is not a list of dotted paths"]),
        ({"NAME": "shop", "MIDDLEWARE": ["nowhere.B"]}, ["DUETIME['MIDDLEWARE']: No module named 'nowhere'"]),
        ({"NAME": "shop", "MIDDLEWARE": ["threading.Lock"]}, ["is not a Middleware"]),
        ({"NAME": "shop", "SERVER": "far:1", "TOKEN": "t"}, ["DUETIME: token: "]),
        ({"SERVR": "a"}, ["unknown key 'SERVR'", "has no NAME"]),
    ],
)
def test_faults_of_the_setting_are_reported_together(value: Any, says: list[str]) -> None:
    with override_settings(DUETIME=value):
        found = [fault.msg for fault in check_configuration(None)]
        with pytest.raises(ImproperlyConfigured) as raised:
            configuration()
    assert len(found) == len(says)
    assert all(part in fault and part in str(raised.value) for part, fault in zip(says, found, strict=True))


def test_setting_gives_the_arguments_of_the_app() -> None:
    token = Token("t", in_plain=True)
    value = {
        "NAME": "shop",
        "SERVER": "far:1",
        "TOKEN": token,
        "NAMED_BY": "type",
        "MIDDLEWARE": [f"{__name__}.Silent"],
    }
    with override_settings(DUETIME=value):
        assert check_configuration(None) == []
        found = configuration().arguments()
    assert isinstance(found.pop("middleware")[0], Silent)
    own = {"name": "shop", "server": "far:1", "token": token, "tls": None}
    assert found == own | {"unhandled": "retry", "named_by": "type"}


def test_call_is_sent_by_the_commit(eager: EagerQueue) -> None:
    with transaction.atomic():
        Parcel.objects.create(name="tea")
        message_id = tasks.pack.with_options(delay="1h").send_in("default", "tea")
        assert eager.pending == []
    assert [one.id for one in eager.pending] == [message_id]
    eager.advance("1h")
    assert tasks.packed == ["tea"]


def test_call_is_dropped_by_a_rollback(eager: EagerQueue) -> None:
    with transaction.atomic():
        tasks.pack.send_in("default", "kept")
        with transaction.atomic():
            tasks.pack.send_in("default", "dropped")
            transaction.set_rollback(True)
    assert tasks.packed == ["kept"]


def test_call_without_a_transaction_is_sent_at_once(eager: EagerQueue) -> None:
    tasks.pack.send_in("default", "tea")
    assert tasks.packed == ["tea"]


def test_wrong_call_fails_in_the_transaction(eager: EagerQueue) -> None:
    soon = tasks.pack.with_options(delay="soon")
    with transaction.atomic():
        with pytest.raises(InvalidArgument, match="delay"):
            soon.send_in("default", "tea")
        transaction.set_rollback(True)
    with pytest.raises(InvalidArgument, match=r"using: 7 is not the alias of a database, such as 'default'"):
        tasks.pack.send_in(7, "tea")
    with pytest.raises(ConnectionDoesNotExist):
        tasks.pack.send_in("other", "tea")
    assert (Parcel.objects.count(), tasks.packed) == (0, [])


def test_connection_of_a_thread_is_closed_after_its_task(eager: EagerQueue) -> None:
    open_after: list[bool] = []

    def work() -> None:
        Parcel.objects.count()
        assert connection.connection is not None
        tasks.pack.send("tea")
        open_after.append(connection.connection is not None)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert (tasks.packed, open_after) == (["tea"], [False])


def test_connection_of_the_orm_beside_an_event_loop_is_closed_too(eager: EagerQueue) -> None:
    def is_open() -> bool:
        return connection.connection is not None

    async def work() -> list[bool]:
        await sync_to_async(Parcel.objects.count)()
        before = await sync_to_async(is_open)()
        await tasks.pack_async.asend("tea")
        return [before, await sync_to_async(is_open)()]

    assert asyncio.run(work()) == [True, False]
    assert tasks.packed == ["tea"]


def test_database_is_a_file(database: Path) -> None:
    """In memory, no connection would be closed."""
    assert database.stat().st_size > 0
