"""The app of the project, made of the setting `DUETIME`."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import close_old_connections, transaction

from duetime.client.consuming.leased import LeasedMessage
from duetime.client.consuming.wrapping import Middleware
from duetime.client.errors import InvalidArgument
from duetime.client.ids import new_id
from duetime.client.message import Message, to_proto
from duetime.client.tasks.app import App
from duetime.client.tasks.sender import TaskSender
from duetime.django.configuration import configuration

OUTBOX = "duetime.django.outbox"


class DjangoApp(App):
    """An `App` of a Django project.

    `send_in(using, ...)` of its tasks sends if and when the transaction of that database, such as "default", commits.
    Without a transaction it sends at once.
    """

    def __init__(self) -> None:
        found = configuration().arguments()
        middleware = [FreshConnections(), *found.pop("middleware")]
        super().__init__(**found, middleware=middleware, outbox=CommitWriter(lambda: self._sender))


class CommitWriter:
    """Sends messages after the commit of a transaction; with the app `duetime.django.outbox` it writes them there."""

    def __init__(self, sender: Callable[[], TaskSender]) -> None:
        self._sender = sender

    def send(self, session: str, message: Message) -> str:
        """Returns the message's id. A rollback drops the message.

        Arguments:
            session: the alias of the database.

        Raises:
            InvalidArgument: the alias is no text, or the message breaks a rule that is checked without a server.
            DueTimeError: from the commit, without the outbox: as `Producer.send`. The transaction has committed all the
                same.
        """
        if not isinstance(session, str):
            raise InvalidArgument.of("using", f"{session!r} is not the alias of a database, such as 'default'")
        named = replace(message, id=message.id or new_id())
        # The eager mode has no relay.
        if apps.is_installed(OUTBOX) and self._sender().eager is None:
            # Its model can be imported only if the app is installed.
            from duetime.django.outbox.writing import write

            return write(session, named)
        to_proto(named)
        transaction.on_commit(partial(self._sender().send, named), using=session)
        return named.id


class FreshConnections(Middleware):
    """Closes old and broken database connections around each task, as Django does around each request."""

    def before(self, message: LeasedMessage) -> Coroutine[Any, Any, None] | None:
        return _close_old()

    def after(self, message: LeasedMessage) -> Coroutine[Any, Any, None] | None:
        return _close_old()

    def failed(self, message: LeasedMessage, error: BaseException) -> Coroutine[Any, Any, None] | None:
        return _close_old()


def _close_old() -> Coroutine[Any, Any, None] | None:
    """Closes those of this thread; on an event loop, awaited: those of the thread that runs the ORM for it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        close_old_connections()
        return None
    closing: Coroutine[Any, Any, None] = sync_to_async(close_old_connections)()
    return closing


app = DjangoApp()
