"""Secrets that must be read again, encrypted in the database: AES-256-GCM under the key of DUETIME_SECRETS_KEY.

    v1.NONCE.CIPHERTEXT, in base64; the access key is authenticated beside it, so that no row takes another's secret

The setting may have several keys with commas: the first encrypts, any decrypts. So a key is changed without a pause.
"""

import base64
import binascii
import secrets

from duetime_core.errors import DataLoss

KEY_BYTES = 32
_NONCE_BYTES = 12
_VERSION = "v1"


class Seal:
    """The keys of the setting."""

    def __init__(self, text: str) -> None:
        """Raises: ValueError: a part is no key."""
        # Imported where it is needed: a start without keys need not wait for it.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._ciphers = [AESGCM(_key_of(part.strip())) for part in text.split(",")]

    def close(self, name: str, secret: str) -> str:
        """Encrypts the secret of this access key."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = self._ciphers[0].encrypt(nonce, secret.encode(), name.encode())
        return ".".join((_VERSION, _text(nonce), _text(sealed)))

    def open(self, name: str, sealed: str) -> str:
        """What was encrypted. Raises: DataLoss: by another key, for another name, or changed since."""
        from cryptography.exceptions import InvalidTag

        version, _, rest = sealed.partition(".")
        nonce, _, ciphertext = rest.partition(".")
        for cipher in self._ciphers if version == _VERSION else ():
            try:
                return cipher.decrypt(_bytes(nonce), _bytes(ciphertext), name.encode()).decode()
            except (InvalidTag, ValueError):
                continue
        raise DataLoss(f"the secret of {name} can't be read: by DUETIME_SECRETS_KEY it was never written so")


def _key_of(text: str) -> bytes:
    try:
        key = _bytes(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        # Never the key itself: this goes to terminals.
        raise ValueError(f"is not {KEY_BYTES} bytes in base64, as `openssl rand -base64 32` makes them")
    return key


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


def _bytes(text: str) -> bytes:
    """Of either alphabet. Raises: ValueError."""
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
