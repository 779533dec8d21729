"""API keys: made once, kept as hashes, good until they are revoked or expire."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from server.access.keys import Keys, is_key
from tests.support.credentials import MemoryKeys


@pytest.fixture
def store() -> MemoryKeys:
    return MemoryKeys()


@pytest.fixture
def keys(store: MemoryKeys) -> Keys:
    return Keys(store)


async def refused(keys: Keys, key: str) -> str:
    with pytest.raises(ProtocolError) as caught:
        await keys.verify(key)
    assert caught.value.code == "unauthorized"
    assert len(key) < 20 or key not in str(caught.value)  # a letter may well be in it
    return caught.value.message


async def test_a_key_signs_its_user_in(keys, store):
    """With the rights and the time that it was made with; the store never has the key itself."""
    until = int(time.time()) + 60
    key, record = await keys.create("ann", tenant="acme", rights=("instructions",), expires_at=until)
    assert is_key(key)
    user = await keys.verify(key)
    assert (user.id, user.tenant, user.rights) == ("acme/ann", "acme", {"instructions"})
    assert (user.key, user.expires_at) == (record.id, until)
    secret = key.removeprefix(f"tw-{record.id}-")
    assert len(secret) == 43
    assert not any(secret.encode() in kept for kept in store.records.values())


async def test_two_keys_of_one_user_are_one_account(keys):
    """And each is revoked alone."""
    (one, record), (two, _) = [await keys.create("ann") for _ in range(2)]
    assert one != two
    assert (await keys.verify(one)).id == (await keys.verify(two)).id
    assert await keys.revoke(record.id)
    assert "revoked" in await refused(keys, one)
    await keys.verify(two)


async def test_a_wrong_secret(keys):
    """The id alone is worth nothing, nor is another key's secret."""
    (one, _), (two, _) = [await keys.create("ann") for _ in range(2)]
    assert "no such key" in await refused(keys, one[:20] + two[20:])
    assert "no such key" in await refused(keys, one[:-1] + ("a" if one[-1] != "a" else "b"))


async def test_an_expired_key(keys):
    """Its time is up."""
    key, _ = await keys.create("ann", expires_at=int(time.time()) - 1)
    assert "expired" in await refused(keys, key)


@given(st.text() | st.from_regex(r"tw-[0-9a-f]{16}-[A-Za-z0-9_-]{43}", fullmatch=True))
@example("tw-0000000000000000-" + "é" * 43)
@example("\ud800")
async def test_whatever_is_no_key(text):
    """Is refused, and no fault of ours."""
    await refused(Keys(MemoryKeys()), text or "x")


async def test_list_and_revoke(keys):
    """All keys, oldest first, with when they were revoked; a key that is not there cannot be."""
    _, record = await keys.create("ann", label="laptop")
    assert not await keys.revoke("0" * 16)
    assert [state.fault for state in await keys.list()] == [None]
    await keys.revoke(record.id)
    (state,) = await keys.list()
    await keys.revoke(record.id)
    assert (await keys.list()) == [state]
    assert state.record.label == "laptop"
    assert state.fault == "the key was revoked"
