"""Settings of sign-in that are wrong together are said at the start."""

from __future__ import annotations

from typing import Any

import pytest

from server.config_loading import load_config
from server.errors import ConfigError

SECRET = "s" * 32


def fault(**flags: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config({"engine": "echo", **{name.replace("__", "."): value for name, value in flags.items()}}, {}, None)
    assert SECRET[:20] not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ({"auth__methods": "jwt"}, "'jwt' needs one of"),
        (
            {"auth__methods": "jwt", "auth__jwt__secret": SECRET, "auth__jwt__jwks_url": "https://x"},
            "'jwt' needs one of",
        ),
        ({"auth__methods": "jwt", "auth__jwt__secret": SECRET[:31]}, "has 31 characters; at least 32"),
        ({"auth__methods": "jwt", "auth__jwt__jwks_url": "http://id.example/keys"}, "must start with https://"),
        ({"auth__methods": "jwt", "auth__jwt__jwks_url": "file:///etc/passwd"}, "must start with https://"),
        ({"auth__methods": "keys", "auth__jwt__secret": SECRET}, "has no effect"),
        ({"auth__methods": "passwords"}, "must be 'keys' or 'jwt'"),
        ({"auth__recheck_s": 31}, "auth.recheck_s"),
        ({"host": "0.0.0.0"}, "nobody has to sign in"),  # noqa: S104 not bound
        ({"trusted_proxies": "10.0.0.0/33"}, "must be an address or a network"),
    ],
)
def test_faults(flags, what):
    """Each names what to do, and never the secret."""
    assert what in fault(**flags)


@pytest.mark.parametrize(
    "flags",
    [
        {"auth.methods": "keys", "host": "0.0.0.0"},  # noqa: S104 not bound
        {"auth.methods": "keys,jwt", "auth.jwt.secret": SECRET},
        {"auth.methods": "jwt", "auth.jwt.jwks_url": "https://id.example/keys"},
        {"auth.methods": "jwt", "auth.jwt.jwks_url": "http://127.0.0.1:9/keys"},
        {"auth.methods": "jwt", "auth.jwt.public_key_file": "~/key.pem"},
        {"trusted_proxies": "10.0.0.0/8,::1"},
    ],
)
def test_settings_that_go_together(flags):
    """With sign-in every address may be served."""
    config = load_config({"engine": "echo", **flags}, {}, None)
    assert SECRET not in repr(config)
