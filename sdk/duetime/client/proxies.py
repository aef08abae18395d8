"""The HTTP proxy of gRPC for a server, as set in the environment; none for a loopback address."""

import os
import re

from duetime_format.hosts import is_loopback

# gRPC reads them in this order, in lower case only.
VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
EXEMPTIONS = ("no_grpc_proxy", "no_proxy")
_USER = re.compile(r"(?<=://)[^/@]*@")


def proxy_of(server: str) -> str:
    """`http_proxy=http://proxy:3128`, without user and password; empty: gRPC connects directly."""
    host = server.rpartition(":")[0]
    if is_loopback(host):
        return ""
    found = next(((name, value) for name in VARIABLES if (value := _read(name))), None)
    if found is None or _is_exempt(host.strip("[]")):
        return ""
    name, value = found
    return f"{name}={_USER.sub('', value)}"


def direct_options(server: str) -> tuple[tuple[str, int], ...]:
    """The channel options for a server: a loopback address uses no proxy."""
    return (("grpc.enable_http_proxy", 0),) if is_loopback(server.rpartition(":")[0]) else ()


def _is_exempt(host: str) -> bool:
    listed = next(filter(None, map(_read, EXEMPTIONS)), "")
    suffixes = [one.strip().lstrip(".") for one in listed.split(",") if one.strip()]
    return any(host == one or host.endswith(f".{one}") for one in suffixes)


def _read(name: str) -> str:
    return os.environ.get(name, "")  # noqa: TID251  gRPC's variables, for the words of an error
