"""Who a client is, and which subprotocol comes back."""

from __future__ import annotations

import pytest

from protocol.errors import ProtocolError
from server.access.auth import ANYBODY, LOCAL_USER, Right, User, authenticate_handshake, select_subprotocol
from server.config import Config


def test_without_sign_in_everyone_is_local():
    """No mode but `none` exists yet; credentials that a client sends anyway are ignored, as SDKs always send one."""
    assert authenticate_handshake({"authorization": "Bearer k"}, Config(engine="echo")) == LOCAL_USER


def test_without_sign_in_only_this_machine_has_every_right():
    """Whoever reaches an open port may chat, and no more."""
    open_to_all = Config(engine="echo", host="0.0.0.0", allow_unauthenticated=True)  # noqa: S104 not bound
    anybody = authenticate_handshake({}, open_to_all)
    assert anybody == ANYBODY
    assert anybody.id == LOCAL_USER.id
    assert not anybody.can(Right.ADMIN)
    assert LOCAL_USER.can(Right.ADMIN)


def test_require():
    """A missing right is named; `admin` has them all."""
    User("ann", frozenset({"big-models"})).require("big-models")
    User("ann", frozenset({Right.ADMIN})).require("big-models")
    with pytest.raises(ProtocolError, match="right 'admin'") as caught:
        User("ann", frozenset({"big-models"})).require(Right.ADMIN, param="model")
    assert (caught.value.code, caught.value.status, caught.value.param) == ("permission_denied", 403, "model")


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
