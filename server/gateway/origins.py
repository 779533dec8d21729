"""Which pages may talk to this server: browsers let any page open a WebSocket to any host, so we look ourselves."""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from server.config import Config, is_loopback

_DEFAULT_PORTS: Final = {"http": 80, "ws": 80, "https": 443, "wss": 443}
# Nobody can register these (RFC 6761, RFC 6762, ICANN's .internal), so a foreign page never has such a name.
_PRIVATE_SUFFIXES: Final = (".localhost", ".local", ".internal")


def refusal(host: str | None, origin: str | None, config: Config) -> str | None:
    """Return why a request must not be served, or None if it may.

    1. An origin listed in `allowed_origins` is welcome.
    2. Any other origin must be the very host and port that was asked for: this server's own page.
    3. Without sign-in the host itself must be one that no stranger can own. A page at evil.example whose name
       resolves to 127.0.0.1 (DNS rebinding) sends Host and Origin that agree, so rule 2 alone would let it in. With
       sign-in such a page has nothing to sign in with: no browser adds our credentials to its requests.
    No Host header means no browser: HTTP/1.0 health checks.

    host, origin: the header values; None where the header is missing.
    """
    if origin is not None:
        if origin.lower() in config.allowed_origins:  # 1
            return None
        if not _same_place(origin, host):  # 2
            return "this origin is not allowed; add it to allowed_origins to serve pages from there"
    if host is not None and not config.auth.methods and not _is_own_name(host, config):  # 3
        return f"this host name is not one of this server's; add http://{host} to allowed_origins if it is"
    return None


def _same_place(origin: str, host: str | None) -> bool:
    """Whether an origin is the place that the Host header names; a missing port is the origin's scheme's."""
    try:
        page, asked = urlsplit(origin.lower()), urlsplit(f"//{(host or '').lower()}")
        ports = page.port, asked.port
    except ValueError:  # not a port number, or an unclosed IPv6 bracket
        return False
    default = _DEFAULT_PORTS.get(page.scheme)
    return bool(default and page.hostname == asked.hostname and (ports[0] or default) == (ports[1] or default))


def _is_own_name(host: str, config: Config) -> bool:
    """Whether `host` can only mean us.

    Addresses and localhost always can. Beyond loopback the names of containers and local networks can, too.
    """
    try:
        name = (urlsplit(f"//{host.lower()}").hostname or "").rstrip(".")
    except ValueError:  # an unclosed IPv6 bracket
        return False
    if name in {"localhost", config.host.lower()} or name.endswith(".localhost") or _is_address(name):
        return True
    if name in {urlsplit(origin).hostname for origin in config.allowed_origins}:
        return True
    return not is_loopback(config.host) and bool(name) and ("." not in name or name.endswith(_PRIVATE_SUFFIXES))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
