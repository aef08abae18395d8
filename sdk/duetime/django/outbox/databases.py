"""The URL of a project's database, for the relay."""

from django.db import connections
from sqlalchemy import URL

from duetime.client.errors import InvalidArgument

# Arguments of psycopg that URLs do not have: Python's own, and one that SQLAlchemy sets.
_NOT_IN_URLS = {"client_encoding", "prepare_threshold"}


def database_url(using: str) -> str:
    """The URL of a database, with its password.

    Raises:
        InvalidArgument: the database is neither PostgreSQL nor a file of SQLite.
    """
    connection = connections[using]
    if connection.vendor == "sqlite":
        if connection.is_in_memory_db():
            raise InvalidArgument.of("database", f"{using!r} is in the memory of its own process")
        return URL.create("sqlite", database=str(connection.settings_dict["NAME"])).render_as_string()
    if connection.vendor != "postgresql":
        raise InvalidArgument.of("database", f"{using!r} is {connection.vendor}, neither PostgreSQL nor SQLite")
    found = connection.get_connection_params()
    texts = {
        name: str(value)
        for name, value in found.items()
        if isinstance(value, str | int) and name not in _NOT_IN_URLS and value != ""
    }
    port = texts.pop("port", None)
    url = URL.create(
        "postgresql",
        username=texts.pop("user", None),
        password=texts.pop("password", None),
        # The folder of a socket has no place in a URL's host.
        host=None if texts.get("host", "/").startswith("/") else texts.pop("host"),
        port=int(port) if port else None,
        database=texts.pop("dbname", None),
        query=texts,
    )
    return url.render_as_string(hide_password=False)
