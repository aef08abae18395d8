"""An identity provider from the settings; `oidc` reads its tokens."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from duetime_format.hosts import is_loopback


@dataclass(frozen=True, slots=True)
class Provider:
    """An identity provider and the claims to read."""

    issuer: str
    audience: str
    # Address of the keys; empty: from the issuer's discovery document.
    keys_url: str = ""
    name_claim: str = "sub"
    groups_claim: str = "groups"
    skew_s: int = 30


def check_url(url: str) -> None:
    """Raises: ValueError: the URL is neither https nor loopback, so keys could be forged on the way."""
    parts = urlsplit(url)
    is_private = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    if not (is_private and parts.hostname):
        raise ValueError(f"{url!r} is neither an https:// URL nor an http:// URL of this machine")
