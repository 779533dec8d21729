"""Sign-in by any method, and what becomes of open sockets."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from typing import Any

import jwt
import pytest

from protocol.errors import ProtocolError
from server.access.auth import ANYBODY, LOCAL_USER, Right, User
from server.access.keys import Keys
from server.access.sign_in import SignIn, SignOut
from server.config import Config
from tests.support.credentials import MemoryKeys, full
from tests.support.memory import until

SECRET = "s" * 32


def sign_in(*methods: str, store: MemoryKeys | None = None, **settings: Any) -> SignIn:
    secret = {"jwt": {"secret": SECRET}} if "jwt" in methods else {}
    auth = {"methods": methods, **secret}
    return SignIn(Config.model_validate({"engine": "echo", "auth": auth, **settings}), store)


def token(**claims: Any) -> str:
    return jwt.encode(full(claims), SECRET, "HS256")


class Socket:
    """An open socket; why: what it was signed out for. gate: closing waits for it."""

    def __init__(self, user: User, *, is_broken: bool = False) -> None:
        self.user = user
        self.why: list[SignOut] = []
        self._is_broken = is_broken
        self.gate = asyncio.Event()
        self.gate.set()

    async def sign_out(self, why: SignOut) -> None:
        self.why.append(why)
        await self.gate.wait()
        if self._is_broken:
            raise OSError("gone")


async def test_without_sign_in_only_this_machine_has_every_right():
    """Credentials that a client sends anyway are ignored. Whoever reaches an open port may chat, and no more."""
    local = await sign_in().handshake({"authorization": "Bearer k"})
    assert local == LOCAL_USER
    anybody = await sign_in(host="0.0.0.0", allow_unauthenticated=True).handshake({})  # noqa: S104 not bound
    assert anybody == ANYBODY
    assert anybody.id == LOCAL_USER.id
    assert anybody.can(Right.INSTRUCTIONS)
    assert not anybody.can(Right.ADMIN)
    assert LOCAL_USER.can(Right.ADMIN)


async def test_with_sign_in_nobody_is_somebody():
    """Until a credential comes; a wrong one is refused at once."""
    both = sign_in("keys", "jwt", store=MemoryKeys())
    assert both.is_required
    assert await both.handshake({}) is None
    with pytest.raises(ProtocolError):
        await both.handshake({"authorization": "Bearer k"})


async def test_keys_and_tokens_side_by_side():
    """One server may take both, and a key and a token of one user are one account."""
    store = MemoryKeys()
    key, _ = await Keys(store).create("ann", tenant="acme")
    both = sign_in("keys", "jwt", store=store)
    by_key = await both.handshake({"authorization": f"Bearer {key}"})
    by_token = await both.handshake({"authorization": f"Bearer {token(tenant='acme')}"})
    assert by_key is not None
    assert by_token is not None
    assert by_key.id == by_token.id == "acme/ann"
    with pytest.raises(ProtocolError):
        await sign_in("jwt").check(key)
    with pytest.raises(ProtocolError):
        await sign_in("keys", store=store).check(token())


async def test_renewing():
    """A new token of the same account takes the old one's place; another's does not, nor does a wrong one."""
    by_token = sign_in("jwt")
    user = await by_token.check(token())
    renewed = await by_token.renew(user, token(rights=["instructions"], exp=int(time.time()) + 600))
    assert renewed.can(Right.INSTRUCTIONS)
    assert (renewed.expires_at or 0) > (user.expires_at or 0)
    assert await by_token.renew(user, None) is user
    for wrong, code in ((token(sub="bob"), "invalid_request"), (token(exp=1), "unauthorized")):
        with pytest.raises(ProtocolError) as caught:
            await by_token.renew(user, wrong)
        assert caught.value.code == code


async def test_open_sockets_are_signed_out():
    """Of a key that was revoked or is gone, and of a sign-in whose time is up; others are left alone."""
    store = MemoryKeys()
    keys = Keys(store)
    (good, _), (bad, revoked), (lost, gone) = [await keys.create("ann") for _ in range(3)]
    by_key = sign_in("keys", store=store)
    users = [await by_key.check(key) for key in (good, bad, lost)]
    users += [User("bob", expires_at=time.time() - 1), User("bob", expires_at=time.time() + 60), LOCAL_USER]
    sockets = [Socket(user) for user in users]
    with ExitStack() as stack:
        for socket in sockets:
            stack.enter_context(by_key.watched(socket))
        await by_key.recheck()
        await until(lambda: sockets[3].why)
        assert [socket.why for socket in sockets] == [[], [], [], ["expired"], [], []]
        await keys.revoke(revoked.id)
        del store.records[gone.id]
        await by_key.recheck()
        await until(lambda: sockets[1].why and sockets[2].why)
    assert [socket.why for socket in sockets] == [[], ["revoked"], ["revoked"], ["expired"], [], []]


async def test_a_socket_that_cannot_be_told(caplog):
    """Keeps nobody else signed in; one that has left is not told."""
    by_key = sign_in("keys", store=MemoryKeys())
    sockets = [Socket(User("ann", expires_at=1.0), is_broken=n == 0) for n in range(3)]
    with by_key.watched(sockets[0]), by_key.watched(sockets[1]):
        with by_key.watched(sockets[2]):
            pass
        await by_key.recheck()
        await until(lambda: "could not be signed out" in caplog.text)
    assert [socket.why for socket in sockets] == [["expired"], ["expired"], []]


async def test_a_socket_that_is_slow_to_close():
    """Is told once, and keeps nobody else signed in meanwhile."""
    by_token = sign_in("jwt")
    slow, other = Socket(User("ann", expires_at=1.0)), Socket(User("ben", expires_at=1.0))
    slow.gate.clear()
    with by_token.watched(slow):
        await by_token.recheck()
        await until(lambda: slow.why)
        with by_token.watched(other):
            await by_token.recheck()
            await until(lambda: other.why)
    slow.gate.set()
    assert slow.why == ["expired"]


async def test_a_store_that_is_away_signs_nobody_out():
    """Nobody can know then which keys are revoked; the next look can. Whose time is up needs no store."""
    store = MemoryKeys()
    key, record = await Keys(store).create("ann")
    by_key = sign_in("keys", store=store)
    socket, expired = Socket(await by_key.check(key)), Socket(User("ben", expires_at=1.0))
    with by_key.watched(socket), by_key.watched(expired):
        await Keys(store).revoke(record.id)
        store.is_away = True
        with pytest.raises(ConnectionError):
            await by_key.recheck()
        await until(lambda: expired.why)
        assert socket.why == []
        store.is_away = False
        await by_key.recheck()
        await until(lambda: socket.why)
    assert socket.why == ["revoked"]
