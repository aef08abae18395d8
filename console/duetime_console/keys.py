"""The keys that sessions are sealed with: of the setting, or of a file that is made once."""

import base64
import hashlib
import secrets
from pathlib import Path

from duetime.cli.files import write_private
from duetime_core.errors import StartupError

from duetime_console.settings import Settings

_STATE = Path(".local") / "state" / "duetime" / "console.secret"


def keys_of(settings: Settings) -> list[bytes]:
    """Keys of 32 bytes in URL-safe base64, the first of which seals.

    Raises:
        StartupError: the file can't be read or made.
    """
    return [_key(one) for one in settings.secrets or [_kept(settings.secret_file)]]


def _key(secret: str) -> bytes:
    """Secrets have any form; they are long, so that a hash is enough."""
    return base64.urlsafe_b64encode(hashlib.sha256(b"duetime console sessions\0" + secret.encode()).digest())


def _kept(path_text: str) -> str:
    try:
        path = Path(path_text) if path_text else Path.home() / _STATE
        if not path.exists():
            write_private(path, secrets.token_urlsafe(32).encode())
        return path.read_text().strip()
    except (OSError, RuntimeError) as error:
        text = f"the secret of sessions can't be kept: {error}; DUETIME_CONSOLE_SECRET_FILE names another file"
        raise StartupError(text) from error
