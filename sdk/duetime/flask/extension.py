"""The extension: an `App` whose tasks run in the context of a Flask application."""

from collections.abc import Callable
from typing import Any

from flask import Flask, current_app
from flask.ctx import AppContext

from duetime.client.consuming.leased import LeasedMessage
from duetime.client.consuming.wrapping import Middleware
from duetime.client.errors import InvalidArgument
from duetime.client.tasks.app import App
from duetime.flask.commands import duetime

EXTENSION = "duetime"


class FlaskTasks(App):
    """An `App` that takes `DUETIME_SERVER`, `DUETIME_TOKEN` and `DUETIME_TLS` from the configuration of a Flask
    application, and runs tasks in its context.

    Arguments:
        name, options: as for `App`; the configuration has precedence.
        app: as for `init_app`.
    """

    def __init__(self, name: str, app: Flask | None = None, **options: Any) -> None:
        middleware = [TaskAppContext(self.flask_app), *options.pop("middleware", ())]
        super().__init__(name, middleware=middleware, **options)
        # The arguments, for applications whose configuration has none.
        self._given = self._server, self._token, self._tls
        self._flask_app: Flask | None = None
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Makes an application the one of the tasks, in place of an earlier one, and adds the command `duetime` to it.

        Raises:
            InvalidArgument: the application has another extension of this kind.
        """
        if app.extensions.get(EXTENSION, self) is not self:
            raise InvalidArgument.of("app", f"{app.name} has the tasks of {app.extensions[EXTENSION].name} already")
        app.extensions[EXTENSION] = self
        self._flask_app = app
        server, token, tls = self._given
        self._server = app.config.get("DUETIME_SERVER", server)
        self._token = app.config.get("DUETIME_TOKEN", token)
        self._tls = app.config.get("DUETIME_TLS", tls)
        # One that is connected by an earlier configuration.
        self.close()
        app.cli.add_command(duetime)

    def flask_app(self) -> Flask:
        """The application of the present context, if it has this extension; else that of the last `init_app`.

        Raises:
            InvalidArgument: there is none.
        """
        if current_app and current_app.extensions.get(EXTENSION) is self:
            return current_app._get_current_object()  # type: ignore[attr-defined, no-any-return]
        if self._flask_app is None:
            raise InvalidArgument.of("app", f"the tasks of {self.name} have no Flask application: call init_app(app)")
        return self._flask_app


class TaskAppContext(Middleware):
    """An application context around each task. Its end calls the functions of `teardown_appcontext`."""

    def __init__(self, flask_app: Callable[[], Flask]) -> None:
        self._flask_app = flask_app
        # Tasks in threads change it, too.
        self._contexts: dict[LeasedMessage, AppContext] = {}

    def before(self, message: LeasedMessage) -> None:
        context = self._flask_app().app_context()
        context.push()
        self._contexts[message] = context

    def after(self, message: LeasedMessage) -> None:
        self._contexts.pop(message).pop(None)

    def failed(self, message: LeasedMessage, error: BaseException) -> None:
        # Missing if the context could not be made, or its end has raised.
        context = self._contexts.pop(message, None)
        if context is not None:
            context.pop(error)
