"""Webhooks connect to public addresses only, and to the operator's networks."""

import ipaddress

import pytest
from duetime_webhooks.addresses import NetworkRules, parse_networks
from hypothesis import given
from hypothesis import strategies as st

PUBLIC = ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700::1111", "2a00:1450:4001:81b::200e", "::ffff:8.8.8.8"]
PUBLIC += ["64:ff9b::808:808", "172.32.0.1", "100.128.0.1", "11.0.0.1"]
REFUSED = {
    "0.0.0.0": "this network",
    "10.1.2.3": "private",
    "100.64.0.1": "shared by a provider (CGNAT)",
    "100.127.255.255": "shared by a provider (CGNAT)",
    "127.0.0.1": "loopback",
    "127.8.9.10": "loopback",
    "168.63.129.16": "a cloud's own service",
    "169.254.169.254": "link-local",
    "172.16.0.1": "private",
    "172.31.255.255": "private",
    "192.168.1.1": "private",
    "192.0.0.192": "reserved",
    "224.0.0.1": "multicast",
    "239.255.255.250": "multicast",
    "255.255.255.255": "reserved",
    "::": "unspecified",
    "::1": "loopback",
    "::8.8.8.8": "reserved",
    "::ffff:127.0.0.1": "loopback",
    "::ffff:10.0.0.1": "private",
    "::ffff:169.254.169.254": "link-local",
    "64:ff9b::7f00:1": "loopback",
    "64:ff9b::a9fe:a9fe": "link-local",
    "64:ff9b:1::808:808": "local NAT64",
    "2001:0:808:808::1": "reserved",
    "2002:7f00:1::": "6to4",
    "fc00::1": "unique local",
    "fd00:ec2::254": "unique local",
    "fe80::1": "link-local",
    "fe80::1%eth0": "link-local",
    "fec0::1": "site-local",
    "ff02::1": "multicast",
    "4000::1": "reserved",
}


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_permitted(text: str) -> None:
    assert NetworkRules().refusal(ipaddress.ip_address(text)) == ""


@pytest.mark.parametrize(("text", "why"), REFUSED.items())
def test_addresses_of_inner_networks_are_refused(text: str, why: str) -> None:
    assert NetworkRules().refusal(ipaddress.ip_address(text)) == why


@given(st.ip_addresses())
def test_no_address_is_permitted_that_python_knows_as_special(address: ipaddress.IPv4Address) -> None:
    if not NetworkRules().refusal(address):
        assert address.is_global or address in ipaddress.ip_network("64:ff9b::/96") or address.ipv4_mapped
        assert not address.is_multicast


def test_permitted_networks_are_exempt_and_refused_ones_take_precedence() -> None:
    rules = NetworkRules(parse_networks("10.1.0.0/16, fd00::/8"), parse_networks("10.1.2.0/24,8.8.8.8"))
    found = {text: rules.refusal(ipaddress.ip_address(text)) for text in ("10.1.1.1", "10.2.1.1", "fd00::1")}
    assert found == {"10.1.1.1": "", "10.2.1.1": "private", "fd00::1": ""}
    assert {rules.refusal(ipaddress.ip_address(text)) for text in ("10.1.2.3", "8.8.8.8", "::ffff:8.8.8.8")} == {
        "refused by a setting"
    }
    assert rules.refusal(ipaddress.ip_address("::ffff:10.1.1.1")) == ""


@pytest.mark.parametrize("text", ["10.0.0.0/33", "ten", "10.0.0.1/8"])
def test_malformed_networks_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"10|ten"):
        parse_networks(text)
