"""An identity provider as the settings name it; its tokens are read by `oidc`."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from duetime_format.hosts import is_loopback


@dataclass(frozen=True, slots=True)
class Provider:
    """Whose tokens count, and how they are read."""

    issuer: str
    audience: str
    # Where the keys are; empty: where the issuer says.
    keys_url: str = ""
    name_claim: str = "sub"
    groups_claim: str = "groups"
    skew_s: int = 30


def check_url(url: str) -> None:
    """Raises: ValueError: keys from there could be anybody's."""
    parts = urlsplit(url)
    is_private = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    if not (is_private and parts.hostname):
        raise ValueError(f"{url!r} is no https:// URL, nor an http:// one of this machine")
