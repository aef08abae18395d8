"""Hosts in addresses."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a port of `host`; a name other than localhost may be anywhere."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
