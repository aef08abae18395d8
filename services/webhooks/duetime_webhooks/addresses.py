"""The addresses to which a webhook may connect: public ones, and the operator's networks. Pure.

The judged address is the resolved one, and the connection goes to exactly that address. A host name that resolves to an
address of the cluster's own network, or does so only at the second lookup, therefore reaches nothing there.

Sources: IANA's special-purpose address registries for IPv4 and IPv6.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_REFUSED_V4 = {
    "0.0.0.0/8": "this network",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared by a provider (CGNAT)",
    "127.0.0.0/8": "loopback",
    "168.63.129.16/32": "a cloud's own service",
    "169.254.0.0/16": "link-local",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "reserved",
    "192.0.2.0/24": "for documentation",
    "192.88.99.0/24": "reserved",
    "192.168.0.0/16": "private",
    "198.18.0.0/15": "for benchmarks",
    "198.51.100.0/24": "for documentation",
    "203.0.113.0/24": "for documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
}
_REFUSED_V6 = {
    "::/128": "unspecified",
    "::1/128": "loopback",
    "64:ff9b:1::/48": "local NAT64",
    "2001::/23": "reserved",
    "2001:db8::/32": "for documentation",
    "2002::/16": "6to4",
    "3fff::/20": "for documentation",
    "fc00::/7": "unique local",
    "fe80::/10": "link-local",
    "fec0::/10": "site-local",
    "ff00::/8": "multicast",
}
_REFUSED = [(ipaddress.ip_network(text), why) for text, why in (_REFUSED_V4 | _REFUSED_V6).items()]
# The only part of IPv6 that is assigned to public hosts.
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
# Prefixes of IPv6 addresses that embed an IPv4 address, which is judged instead.
_EMBEDDING = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))


@dataclass(frozen=True)
class NetworkRules:
    """The operator's networks beside the rule for public addresses; a refused one takes precedence."""

    permitted: Sequence[Network] = ()
    refused: Sequence[Network] = ()

    def refusal(self, address: Address) -> str:
        """The reason not to connect to an address, such as `private`; empty: it is permitted."""
        judged = _embedded(address)
        if _is_within(judged, self.refused) or _is_within(address, self.refused):
            return "refused by a setting"
        if _is_within(judged, self.permitted) or _is_within(address, self.permitted):
            return ""
        for network, why in _REFUSED:
            if judged.version == network.version and judged in network:
                return why
        if isinstance(judged, ipaddress.IPv6Address) and judged not in _GLOBAL_V6:
            return "reserved"
        return ""


def parse_networks(text: str) -> list[Network]:
    """Networks from `10.1.0.0/16,fd00::/8`; an address is a network of one. Raises: ValueError."""
    return [ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip()]


def _embedded(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, or the address itself."""
    if isinstance(address, ipaddress.IPv6Address) and any(address in prefix for prefix in _EMBEDDING):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def _is_within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == one.version and address in one for one in networks)
