"""Which pages may talk to a server: the decision alone."""

from __future__ import annotations

import pytest

from server.config import Config
from server.gateway.origins import refusal

LOCAL = Config(engine="echo", allowed_origins=("https://chat.example", "http://10.0.0.1:3000"))
OPEN = Config(engine="echo", host="10.0.0.1", allow_unauthenticated=True)
BEHIND_PROXY = Config(
    engine="echo", host="10.0.0.1", allow_unauthenticated=True, allowed_origins=("https://c.example",)
)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        (None, None),
        ("127.0.0.1:8000", None),
        ("localhost:8000", "http://localhost:8000"),
        ("LOCALHOST", "http://localhost:80"),
        ("localhost", "https://localhost"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("app.localhost:8000", "http://app.localhost:8000"),
        ("localhost:8000", "https://chat.example"),
        ("localhost:8000", "HTTPS://Chat.Example"),
        ("chat.example", "https://chat.example"),
        ("127.0.0.1:8000", "http://10.0.0.1:3000"),
    ],
)
def test_welcome(host, origin):
    """The own page, listed pages, and clients that are no browsers."""
    assert refusal(host, origin, LOCAL) is None


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8000", "http://evil.example"),
        ("localhost:8000", "null"),
        ("localhost:8000", ""),
        ("localhost:8000", "http://localhost:8001"),
        ("localhost:8000", "http://127.0.0.1:8000"),
        ("localhost:8000", "file://"),
        ("localhost:8000", "http://localhost:8000.evil.example"),
        ("localhost:8000", "http://[::1"),
        ("localhost:x", "http://localhost:8000"),
        (None, "http://localhost:8000"),
        ("evil.example:8000", "http://evil.example:8000"),
        ("evil.example:8000", None),
        ("127.0.0.1.evil.example", None),
        ("localhost.evil.example", None),
        ("gateway:8000", None),
        ("", None),
        ("[::1", None),
    ],
)
def test_refused(host, origin):
    """Other pages, names that a stranger can own, and what is no origin at all."""
    assert refusal(host, origin, LOCAL)


@pytest.mark.parametrize(
    "host", ["gateway:8000", "gw.svc.cluster.local", "box.internal", "192.168.0.2:8000", "localhost"]
)
def test_networks_beyond_loopback(host):
    """Containers and local networks reach an open server by their private names."""
    assert refusal(host, None, OPEN) is None


@pytest.mark.parametrize("host", ["evil.example", "chat.example:8000"])
def test_public_names_must_be_listed(host):
    """A public name may be a stranger's; behind a proxy its own name is listed."""
    assert "allowed_origins" in (refusal(host, None, OPEN) or "")
    assert refusal("c.example", "https://c.example", BEHIND_PROXY) is None
