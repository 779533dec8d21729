"""What one address may have, and whose a request is behind proxies."""

from __future__ import annotations

import ipaddress

import pytest

from server.config import LimitsConfig
from server.gateway.addresses import Addresses, client_address, group

PROXIES = tuple(ipaddress.ip_network(name) for name in ("10.0.0.0/8", "127.0.0.1/32", "fd00::/8"))


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.7", None, "203.0.113.7"),
        ("203.0.113.7", "198.51.100.1", "203.0.113.7"),  # no proxy of ours: it may say what it likes
        ("10.1.2.3", "203.0.113.7", "203.0.113.7"),
        ("10.1.2.3", "1.1.1.1, 203.0.113.7", "203.0.113.7"),  # what stands before it, the client has written
        ("10.1.2.3", "203.0.113.7, 10.9.9.9", "203.0.113.7"),
        ("127.0.0.1", "2001:db8::7", "2001:db8::7"),
        ("10.1.2.3", "", "10.1.2.3"),
        ("10.1.2.3", "unknown", "10.1.2.3"),
        ("10.1.2.3", "203.0.113.7, nonsense", "10.1.2.3"),
        ("", "203.0.113.7", ""),
    ],
)
def test_client_address(peer, forwarded, address):
    """The last address that one of our proxies has seen."""
    assert client_address(peer, forwarded, PROXIES) == address


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", ""),
        ("127.0.0.1", ""),
        ("10.1.2.3", ""),
        ("::ffff:192.168.1.1", ""),
        ("::1", ""),
        ("/run/socket", ""),
    ],
)
def test_group(address, name):
    """What one customer has is counted together, and private networks not at all."""
    assert group(address) == name


def addresses(clock=lambda: 0.0, **limits: int) -> Addresses:
    return Addresses(LimitsConfig(**limits), clock)


def test_handshakes():
    """Of one address, and of all together; loopback counts among all only."""
    counted = addresses(max_handshakes=5, max_handshakes_per_address=2)
    assert [counted.begin_handshake("203.0.113.7") for _ in range(3)] == [True, True, False]
    counted.end_handshake("203.0.113.7")
    counted.end_handshake("203.0.113.7")
    assert counted.begin_handshake("203.0.113.7")
    assert [counted.begin_handshake("127.0.0.1") for _ in range(4)] == [True, True, True, False]


def test_connections():
    """One that closes makes room."""
    counted = addresses(max_connections_per_address=2)
    assert [counted.connect("203.0.113.7") for _ in range(3)] == [True, True, False]
    assert counted.connect("203.0.113.8")
    counted.disconnect("203.0.113.7")
    assert counted.connect("203.0.113.7")
    assert all(counted.connect("127.0.0.1") for _ in range(10))


def test_requests():
    """The hint is the next minute."""
    now = 90.0
    counted = addresses(lambda: now, max_requests_per_minute_per_address=3)
    assert [counted.request("203.0.113.7") for _ in range(4)] == [None, None, None, 30.0]
    assert counted.request("203.0.113.8") is None
    now = 120.0
    assert counted.request("203.0.113.7") is None


def test_nothing_is_kept_of_who_has_left():
    """A flood from a million addresses leaves no table behind."""
    now = 0.0
    counted = addresses(lambda: now)
    for number in range(1000):
        address = str(ipaddress.ip_address(0x01000000 + number))
        counted.begin_handshake(address)
        counted.end_handshake(address)
        counted.request(address)
        counted.connect(address)
        counted.disconnect(address)
    now = 60.0
    counted.request("127.0.0.1")
    assert not counted._handshakes
    assert not counted._connections
    assert not counted._requests
