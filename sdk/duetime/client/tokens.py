"""The token of a client: an argument, DUETIME_TOKEN, or the content of the file DUETIME_TOKEN_FILE.

Anyone who reads a token can use it. A client therefore sends it only over connections that others can't read: TLS, or
within this machine. Other connections need explicit permission.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from duetime_format.hosts import is_loopback

from duetime.client.errors import DueTimeError, InvalidArgument, Unauthenticated, of_file

TOKEN_VARIABLE = "DUETIME_TOKEN"  # noqa: S105  its name
TOKEN_FILE_VARIABLE = "DUETIME_TOKEN_FILE"  # noqa: S105  its name
IN_PLAIN_VARIABLE = "DUETIME_TOKEN_IN_PLAIN"
METADATA_KEY = "authorization"
TOKEN_CHARS_MAX = 16_384
# Interval of reads of the token file.
FILE_FRESH_S = 1.0

Metadata = tuple[tuple[str, str], ...]


class Token:
    """A token or its source, and permission to send it in plain text.

    Arguments:
        source: the token; or a function that returns the current one, for tokens that expire. Every call to the server
            calls the function, on the client's event loop or in the thread of a send: it must return at once, from a
            cached copy, also if two threads call it.
        in_plain: whether the token may be sent to other machines without encryption.
    """

    def __init__(self, source: str | Callable[[], str], *, in_plain: bool = False) -> None:
        self.source = source
        self.in_plain = in_plain

    def __repr__(self) -> str:
        return f"Token(..., in_plain={self.in_plain})"


TokenSource = Token | str | Callable[[], str]


class TokenCredentials:
    """The credentials in the calls of one client."""

    def __init__(self, read: Callable[[], str] | None) -> None:
        self._read = read
        self._text = ""
        self._metadata: Metadata = ()

    def __bool__(self) -> bool:
        return self._read is not None

    def metadata(self) -> Metadata:
        """Metadata for a call that starts now. Raises: Unauthenticated: the token is unavailable."""
        if self._read is None:
            return ()
        try:
            text = self._read()
        except DueTimeError:
            raise
        except Exception as error:
            cause = of_file(error) if isinstance(error, OSError) else repr(error)
            raise Unauthenticated(f"can't read the token: {cause}", reason="TOKEN_UNREADABLE") from error
        if text != self._text:
            self._metadata = ((METADATA_KEY, f"Bearer {_checked(text)}"),)
            self._text = text
        return self._metadata


def credentials_for(server: str, token: TokenSource | None, *, encrypted: bool = False) -> TokenCredentials:
    """The credentials for calls to `server`. `encrypted`: no one else can read them.

    Raises:
        InvalidArgument: the token is malformed, or others could read it in transit.
    """
    if token is None:
        token = _of_environment()
        if token is None:
            return TokenCredentials(None)
    if not isinstance(token, Token):
        token = Token(token, in_plain=_variable(IN_PLAIN_VARIABLE) == "1")
    if not (encrypted or token.in_plain or is_loopback(server.rpartition(":")[0])):
        text = f"would be sent to {server} as plain text, which others can read; Tls(...) or DUETIME_TLS_CA_FILE \
encrypts it, Token(..., in_plain=True) or {IN_PLAIN_VARIABLE}=1 allows it"
        raise InvalidArgument.of("token", text)
    source = token.source
    if isinstance(source, str):
        fixed = _checked(source)
        return TokenCredentials(lambda: fixed)
    return TokenCredentials(source)


def showing(channel: Any, credentials: TokenCredentials) -> Any:
    """The channel with a token in each later call. An interceptor would make a task for each call."""
    if credentials:
        for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
            if make := getattr(channel, kind, None):
                setattr(channel, kind, _method_maker(make, credentials))
    return channel


def _method_maker(make: Any, credentials: TokenCredentials) -> Any:
    def make_method(*arguments: Any, **options: Any) -> Any:
        method = make(*arguments, **options)

        def call(*request: Any, metadata: Sequence[tuple[str, Any]] | None = None, **further: Any) -> Any:
            return method(*request, metadata=(*credentials.metadata(), *(metadata or ())), **further)

        return call

    return make_method


def _of_environment() -> TokenSource | None:
    text, path = _variable(TOKEN_VARIABLE), _variable(TOKEN_FILE_VARIABLE)
    return text or (_FileToken(Path(path)) if path else None)


def _variable(name: str) -> str:
    return os.environ.get(name, "")  # noqa: TID251  the only place where the SDK reads them


class _FileToken:
    """The token in a file that may be replaced at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = ""
        self._looked_at_s = 0.0

    def __call__(self) -> str:
        now_s = time.monotonic()
        if not self._text or now_s - self._looked_at_s > FILE_FRESH_S:
            self._text, self._looked_at_s = self._path.read_text().strip(), now_s
        return self._text


def _checked(text: str) -> str:
    if not isinstance(text, str) or not 1 <= len(text) <= TOKEN_CHARS_MAX or not all("!" <= one <= "~" for one in text):
        raise InvalidArgument.of("token", f"is not 1 to {TOKEN_CHARS_MAX} characters of plain ASCII without blanks")
    return text
