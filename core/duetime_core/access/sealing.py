"""Encrypts secrets that must be readable later: AES-256-GCM under the key of DUETIME_SECRETS_KEY.

    v1.NONCE.CIPHERTEXT, in base64; the secret's name is authenticated too: no secret can be moved to another row

The setting may hold several keys, separated by commas: the first encrypts, any decrypts. So a key can be rotated
without downtime.
"""

import base64
import binascii
import secrets

from duetime_core.errors import DataLoss

KEY_BYTES = 32
_NONCE_BYTES = 12
_VERSION = "v1"


class Seal:
    """Encrypts and decrypts with the keys of the setting."""

    def __init__(self, text: str) -> None:
        """Raises: ValueError: a part is not a key."""
        # Imported on use: a start without keys skips it.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._ciphers = [AESGCM(_key_of(part.strip())) for part in text.split(",")]

    def close(self, name: str, secret: str) -> str:
        """Encrypts a secret: an access key's, or a webhook's."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = self._ciphers[0].encrypt(nonce, secret.encode(), name.encode())
        return ".".join((_VERSION, _text(nonce), _text(sealed)))

    def open(self, name: str, sealed: str) -> str:
        """Decrypts a secret. Raises: DataLoss: encrypted with another key or for another name, or modified since."""
        from cryptography.exceptions import InvalidTag

        version, _, rest = sealed.partition(".")
        nonce, _, ciphertext = rest.partition(".")
        for cipher in self._ciphers if version == _VERSION else ():
            try:
                return cipher.decrypt(_bytes(nonce), _bytes(ciphertext), name.encode()).decode()
            except (InvalidTag, ValueError):
                continue
        raise DataLoss(f"the secret of {name} cannot be decrypted with DUETIME_SECRETS_KEY")


def _key_of(text: str) -> bytes:
    try:
        key = _bytes(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        # The text omits the key itself: it goes to terminals.
        raise ValueError(f"is not {KEY_BYTES} bytes in base64; `openssl rand -base64 32` makes such a key")
    return key


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


def _bytes(text: str) -> bytes:
    """Decodes both base64 alphabets. Raises: ValueError."""
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
