"""Sign-in: a credential in, a user out; and whether open sockets are still who they were."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Final, Protocol

from protocol.errors import ProtocolError
from server.access.auth import ANYBODY, LOCAL_USER, User, credential_of, unauthorized
from server.access.keys import Keys, KeyStore, is_key
from server.access.tokens import Tokens
from server.config import Config, is_loopback

logger = logging.getLogger(__name__)

WHERE_TO: Final = "send it as Authorization: Bearer …, or as the token of a session.update"


class SignOut(StrEnum):
    """Why an open socket is signed out; the close frame's reason."""

    EXPIRED = "expired"
    REVOKED = "revoked"


class Signed(Protocol):
    """An open socket that is signed in."""

    user: User

    async def sign_out(self, why: SignOut) -> None:
        """Take nothing more from it, say so and close; asked once."""
        ...


class SignIn:
    """Who signs in here, and how.

    store: of API keys; needed where `auth.methods` has `keys`. Raises OSError and ValueError where the public key of
    `[auth.jwt]` cannot be used.
    """

    def __init__(self, config: Config, store: KeyStore | None = None) -> None:
        methods = config.auth.methods
        self._everyone = None if methods else LOCAL_USER if is_loopback(config.host) else ANYBODY
        self._keys = Keys(store) if "keys" in methods and store is not None else None
        self._tokens = Tokens(config.auth.jwt) if "jwt" in methods else None
        self._recheck_s = config.auth.recheck_s
        self._open: set[Signed] = set()
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def is_required(self) -> bool:
        return self._everyone is None

    async def handshake(self, headers: Mapping[str, str]) -> User | None:
        """Return who sends these headers (by lower-case name), or None where nobody signed in yet.

        Without sign-in credentials are ignored: SDKs always send one. Raises ProtocolError for a wrong one, and what
        the store raises.
        """
        if self._everyone is not None:
            return self._everyone
        credential = credential_of(headers)
        return None if credential is None else await self.check(credential)

    async def check(self, credential: str) -> User:
        """Return whose key or token this is. Raises ProtocolError for a wrong one, and what the store raises."""
        if self._everyone is not None:
            return self._everyone
        if self._keys is not None and (is_key(credential) or self._tokens is None):
            return await self._keys.verify(credential)
        if self._tokens is None:
            raise unauthorized("nobody can sign in: the server has no way to check a key")
        return await self._tokens.verify(credential)

    async def renew(self, user: User, credential: str | None) -> User:
        """Return who a socket is after `session.update`: the same account, with the new credential's rights and time.

        None changes nothing. Raises ProtocolError, and what the store raises; then nothing has changed either.
        """
        if credential is None:
            return user
        renewed = await self.check(credential)
        if renewed.id != user.id:
            text = "this token is another account's; open a connection of its own for it"
            raise ProtocolError("invalid_request", text, param="token")
        return renewed

    # Open sockets

    @contextmanager
    def watched(self, member: Signed) -> Iterator[None]:
        """Sign a socket out while inside, when its key is revoked or its time is up."""
        self._open.add(member)
        try:
            yield
        finally:
            self._open.discard(member)

    async def run(self) -> None:
        """Look after open sockets until cancelled. While the store is away no key is known to be revoked."""
        while True:
            await asyncio.sleep(self._recheck_s)
            try:
                await self.recheck()
            except Exception as error:  # noqa: BLE001 whatever it is, the next look may succeed
                logger.warning("open connections could not be checked: %s", error)

    async def recheck(self) -> None:
        """Begin to sign out who must be; one that is slow to close keeps no other from being looked at."""
        now = time.time()
        for member in tuple(self._open):  # first, as it needs no store
            if member.user.expires_at is not None and member.user.expires_at <= now:
                self._begin_sign_out(member, SignOut.EXPIRED)
        revoked = await self._revoked()
        for member in tuple(self._open):
            if member.user.key in revoked:
                self._begin_sign_out(member, SignOut.REVOKED)

    def _begin_sign_out(self, member: Signed, why: SignOut) -> None:
        self._open.discard(member)
        task = asyncio.create_task(self._sign_out(member, why), name="sign out")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _sign_out(self, member: Signed, why: SignOut) -> None:
        try:
            await member.sign_out(why)
        except Exception:
            logger.exception("a connection could not be signed out")

    async def _revoked(self) -> set[str]:
        """Return the keys of open sockets that are revoked, or gone."""
        ids = sorted({member.user.key for member in self._open if member.user.key is not None})
        states = await self._keys.states(ids) if self._keys is not None and ids else []
        return {
            key_id for key_id, state in zip(ids, states, strict=True) if state is None or state.revoked_at is not None
        }
