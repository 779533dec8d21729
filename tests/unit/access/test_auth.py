"""Who a client is, and which subprotocol comes back."""

from __future__ import annotations

import pytest

from server.access.auth import User, authenticate_handshake, select_subprotocol
from server.config import Config


def test_without_sign_in_everyone_is_local():
    """No mode but `none` exists yet; credentials that a client sends anyway are ignored, as SDKs always send one."""
    assert authenticate_handshake({"authorization": "Bearer k"}, Config(engine="echo")) == User("local")


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ([], None),
        (["a", "b"], "a"),
        (["a", "responses"], "responses"),
        (["openai-insecure-api-key.k"], None),
        (["openai-insecure-api-key.k", "a"], "a"),
    ],
)
def test_select_subprotocol(offered, chosen):
    """`responses` first, else the first that is no credential."""
    assert select_subprotocol(offered) == chosen
