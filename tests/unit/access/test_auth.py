"""Accounts, rights, and where a credential stands in a request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from server.access.auth import Right, User, account_id, credential_of, select_subprotocol, tenant_of


def test_require():
    """A missing right is named; `admin` has them all."""
    User("ann", frozenset({"big-models"})).require("big-models")
    User("ann", frozenset({Right.ADMIN})).require("big-models")
    with pytest.raises(ProtocolError, match="right 'admin'") as caught:
        User("ann", frozenset({"big-models"})).require(Right.ADMIN, param="model")
    assert (caught.value.code, caught.value.status, caught.value.param) == ("permission_denied", 403, "model")


NAMES = st.text(st.sampled_from("a/%@ é\n"), max_size=4)


@given(NAMES, NAMES, NAMES, NAMES)
def test_no_two_users_share_an_account(user, tenant, other, other_tenant):
    """Whatever their names hold; and the tenant can be read from it."""
    mine, others = account_id(user, tenant), account_id(other, other_tenant)
    assert (mine == others) == ((user, tenant) == (other, other_tenant))
    assert (tenant_of(mine) == tenant_of(others)) == (tenant == other_tenant)
    assert mine.isascii()
    assert mine.isprintable()


@pytest.mark.parametrize(
    ("headers", "credential"),
    [
        ({}, None),
        ({"authorization": "Bearer k"}, "k"),
        ({"authorization": "bearer   k "}, "k"),
        ({"authorization": "Basic dXNlcjpwYXNz"}, None),
        ({"authorization": "Bearer "}, None),
        ({"authorization": "k"}, None),
        ({"sec-websocket-protocol": "responses, openai-insecure-api-key.k"}, "k"),
        ({"sec-websocket-protocol": "openai-insecure-api-key."}, None),
        ({"sec-websocket-protocol": "responses"}, None),
        ({"authorization": "Bearer a", "sec-websocket-protocol": "openai-insecure-api-key.b"}, "a"),
    ],
)
def test_credential_of(headers, credential):
    """The bearer header, then the subprotocol; other schemes are a proxy's."""
    assert credential_of(headers) == credential


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
