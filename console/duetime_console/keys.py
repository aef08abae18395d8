"""The keys that seal sessions: from the setting, or from a generated file."""

import base64
import hashlib
import secrets
from pathlib import Path

from duetime.cli.files import write_private
from duetime_core.errors import StartupError

from duetime_console.settings import Settings

_STATE = Path(".local") / "state" / "duetime" / "console.secret"


def keys_of(settings: Settings) -> list[bytes]:
    """Keys of 32 bytes in URL-safe base64; the first one seals.

    Raises:
        StartupError: the file can't be read or created.
    """
    return [_key(one) for one in settings.secrets or [_kept(settings.secret_file)]]


def _key(secret: str) -> bytes:
    """Hashes a secret of any form; secrets are long, so a hash is enough."""
    return base64.urlsafe_b64encode(hashlib.sha256(b"duetime console sessions\0" + secret.encode()).digest())


def _kept(path_text: str) -> str:
    try:
        path = Path(path_text) if path_text else Path.home() / _STATE
        if not path.exists():
            write_private(path, secrets.token_urlsafe(32).encode())
        return path.read_text().strip()
    except (OSError, RuntimeError) as error:
        text = f"can't store the secret of sessions: {error}; set DUETIME_CONSOLE_SECRET_FILE to another file"
        raise StartupError(text) from error
