"""What one address may have of this port: connections, unfinished handshakes, requests a minute."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from server.config import LimitsConfig

MINUTE_S: Final = 60.0
IPV6_HOST_BITS: Final = 64  # one customer has them all (RFC 6177)
MAX_FORWARDED: Final = 20  # addresses looked at in one X-Forwarded-For

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# What comes from there has passed a proxy, a container's bridge or a NAT of ours, or sits in our own house: bounds for
# one address would be bounds for all clients together. (`is_private` has the addresses of examples, too.)
PRIVATE: Final[tuple[Network, ...]] = tuple(
    ipaddress.ip_network(name)
    for name in (
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
        "169.254.0.0/16",
        "::1/128",
        "fc00::/7",
        "fe80::/10",
    )
)


def client_address(peer: str, forwarded: str | None, proxies: tuple[Network, ...]) -> str:
    """Return whose request this is: the peer's, or of proxies that we trust the last address before them.

    Anyone can write X-Forwarded-For; what counts of it is what a trusted proxy has put there, from the right.
    """
    address = peer
    for name in reversed((forwarded or "").split(",")[-MAX_FORWARDED:]):
        if not _is_in(address, proxies):
            break
        given = name.strip()
        if _parsed(given) is None:
            break
        address = given
    return address


class Addresses:
    """Counts what each address has now. Those of private networks have no bounds of their own."""

    def __init__(self, limits: LimitsConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._handshakes: Counter[str] = Counter()
        self._connections: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._minute = 0
        self._pending = 0

    def begin_handshake(self, peer: str) -> bool:
        """Count a connection whose request has not come; return whether it may stay. `end_handshake` must follow."""
        name = group(peer)
        self._pending += 1
        self._handshakes[name] += 1
        most = self._limits.max_handshakes_per_address
        return self._pending <= self._limits.max_handshakes and (not name or self._handshakes[name] <= most)

    def end_handshake(self, peer: str) -> None:
        """Its request has come, or it has left."""
        self._pending -= 1
        _take(self._handshakes, group(peer))

    def request(self, address: str) -> float | None:
        """Count a request; return None where it may be answered, else the seconds until the next may come."""
        now = self._clock()
        minute = math.floor(now / MINUTE_S)
        if minute != self._minute:  # a fresh table each minute: its size is what the minute brought
            self._minute = minute
            self._requests.clear()
        name = group(address)
        if not name:
            return None
        self._requests[name] += 1
        if self._requests[name] <= self._limits.max_requests_per_minute_per_address:
            return None
        return (minute + 1) * MINUTE_S - now

    def connect(self, address: str) -> bool:
        """Count a WebSocket and return True, or return False where the address has enough."""
        name = group(address)
        if name and self._connections[name] >= self._limits.max_connections_per_address:
            return False
        self._connections[name] += 1
        return True

    def disconnect(self, address: str) -> None:
        _take(self._connections, group(address))


@lru_cache(maxsize=4096)  # asked four times in a handshake, of which it took a tenth
def group(address: str) -> str:
    """Return what is counted together: an IPv4 address, an IPv6 network of one customer; '' for private networks."""
    parsed = _parsed(address)
    if parsed is None or any(parsed in network for network in PRIVATE):
        return ""
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(ipaddress.ip_network((parsed, IPV6_HOST_BITS), strict=False))


def _take(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if counter[name] <= 0:
        del counter[name]


def _is_in(address: str, networks: tuple[Network, ...]) -> bool:
    parsed = _parsed(address)
    return parsed is not None and any(parsed in network for network in networks)


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an address, an IPv4 one also where it is written as IPv6; None for anything else (a socket's path)."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed
