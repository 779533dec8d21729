"""How much of everything a user, a tenant and a key may use, over all gateways together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from protocol.commands import ConversationCreate, ResponseCreate
from protocol.errors import ProtocolError
from server.access.auth import User, tenant_of
from server.config import QuotasConfig

logger = logging.getLogger(__name__)

MINUTE_MS: Final = 60_000
# A gateway that dies gives its places back after this long; one that lives renews them.
LEASE_MS: Final = 60_000
RENEW_S: Final = 20.0
BUSY_RETRY_MS: Final = 2000  # nobody knows when an answer ends or a connection closes
MAKING_MS: Final = 30_000  # a conversation, or a turn of one, may take this long to be made
MAX_LIMIT: Final = 2**53 - 1  # the largest number that JSON and Redis's scripts have exactly

Quota = dict[str, Any]
Command = tuple[str, str, str]  # what a repetition is known by: kind, owner, command id ('' for none)
NO_COMMAND: Final = ("", "", "")


class QuotaStore(Protocol):
    """Where quotas are counted; see server/store/quotas.py."""

    async def take_quotas(
        self, thing: str, quotas: Sequence[Quota], now_ms: int | None, command: Command
    ) -> tuple[int, int]: ...
    async def end_quotas(self, thing: str, quotas: Sequence[Quota], now_ms: int | None) -> None: ...
    async def renew_quotas(self, held: Sequence[tuple[str, str]], lease_ms: int) -> None: ...
    async def read_quotas(self, quotas: Sequence[Quota], now_ms: int | None) -> list[tuple[int, int]]: ...


@dataclass(frozen=True, slots=True)
class Allowance:
    """One limit. scope: `user`, `tenant` or `key`, and whose. name: a field of `AllowanceConfig`."""

    scope: str
    whose: str
    name: str
    limit: int

    @property
    def key(self) -> str:
        return f"{self.name}:{self.scope}:{self.whose}"


@dataclass(eq=False)
class Hold:
    """What one turn or connection holds of its quotas until it ends."""

    thing: str
    quotas: list[Quota] = field(default_factory=list)


# name of a limit -> (kind in Redis, what is counted, in words)
_KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "connections": ("place", "open connections"),
    "concurrent_responses": ("place", "responses at once"),
    "turns_per_minute": ("window", "turns a minute"),
    "input_tokens_per_day": ("spent", "input tokens a day"),
    "output_tokens_per_day": ("spent", "output tokens a day"),
    "input_chars": ("size", "characters in one turn"),
    "conversations": ("conversations", "conversations"),
    "conversation_turns": ("turns", "turns in one conversation"),
}
LIMIT_NAMES: Final = frozenset(_KINDS)
_TOKENS: Final = ("input_tokens_per_day", "output_tokens_per_day")
_OF_A_TURN: Final = ("conversation_turns", *_TOKENS, "concurrent_responses", "turns_per_minute")


class Limits:
    """Takes from quotas before something begins and gives back when it ends.

    Without a limit for a user nothing is asked of the store. What the store raises passes through.

    now_ms: Unix time in milliseconds for tests; None for the store's own clock.
    """

    def __init__(
        self, config: QuotasConfig, store: QuotaStore | None = None, now_ms: Callable[[], int] | None = None
    ) -> None:
        self._user = config.user.model_dump()
        # Conversations are counted where they are listed, and that is by user.
        self._tenant = config.tenant.model_dump() | {"conversations": 0}
        self._store = store
        self._now_ms = now_ms or (lambda: None)  # type: ignore[return-value]
        self._held: set[Hold] = set()

    # Turns

    async def begin_turn(self, user: User, response_id: str, command: ResponseCreate) -> Hold:
        """Take what a turn costs before it runs. Raises ProtocolError; then nothing is taken."""
        self._check_size(user, command)
        allowances = [
            allowance
            for allowance in self._allowances(user, *_OF_A_TURN)
            if allowance.name != "conversation_turns" or command.conversation_id
        ]
        repeated = ("turn-command", user.id, (command.id or "") if command.is_stored else "")
        return await self._take(response_id, allowances, repeated, conversation=command.conversation_id)

    def adopt_turn(self, account: str, response_id: str) -> Hold:
        """Return what to end when a response that another gateway has begun ends here: its tokens are spent here.

        Whose key it was is not known any more: the user and the tenant have spent them.
        """
        tenant = tenant_of(account)
        scopes = [("user", account), *([("tenant", tenant)] if tenant else [])]
        spent = [Allowance(scope, whose, name, 0) for scope, whose in scopes for name in _TOKENS]
        return Hold(response_id, [_quota(allowance) for allowance in spent])

    async def leave_turn(self, hold: Hold) -> None:
        """Another gateway goes on with the turn: give its place back; the tokens are that one's to write down."""
        await self._end(hold, hold.quotas, {"window", "spent"})

    async def end_turn(self, hold: Hold, input_tokens: int, output_tokens: int) -> None:
        """The turn has ended: give its place back and write its tokens down."""
        spent = {"input_tokens_per_day": input_tokens, "output_tokens_per_day": output_tokens}
        await self._end(hold, [quota | {"amount": spent.get(quota["name"], 0)} for quota in hold.quotas], {"window"})

    async def undo_turn(self, hold: Hold) -> None:
        """The turn never was: give everything back."""
        await self._end(hold, hold.quotas, {"spent"})

    # The rest

    async def open_connection(self, user: User, connection_id: str) -> Hold:
        """Take a connection's place. Raises ProtocolError."""
        return await self._take(connection_id, self._allowances(user, "connections"))

    async def close(self, hold: Hold) -> None:
        """Give a connection's place back."""
        await self._end(hold, hold.quotas, set())

    async def check_conversation(self, user: User, conversation_id: str, command: ConversationCreate) -> Hold:
        """Take a place among the user's conversations for one that is about to be made. Raises ProtocolError."""
        self._check_size(user, command)
        repeated = ("conversation-command", user.id, command.id or "")
        return await self._take(conversation_id, self._allowances(user, "conversations"), repeated, owner=user.id)

    def forget(self, hold: Hold) -> None:
        """Leave it to its lease."""
        self._held.discard(hold)

    async def read(self, user: User) -> list[dict[str, Any]]:
        """Return every limit of a user and what is left of it, in the wire's shape."""
        allowances = list(self._allowances(user, *_KINDS))
        counted = [allowance for allowance in allowances if _KINDS[allowance.name][0] not in {"size", "turns"}]
        used = {}
        if counted and self._store is not None:
            quotas = [_quota(allowance, owner=user.id) for allowance in counted]
            used = dict(zip(counted, await self._store.read_quotas(quotas, self._now_ms()), strict=True))
        return [_wire(allowance, *used.get(allowance, (None, -1))) for allowance in allowances]

    async def run(self) -> None:
        """Renew what is held until cancelled."""
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await self.renew()
            except Exception as error:  # noqa: BLE001 whatever it is, the next time is before the lease is up
                logger.warning("places under limits could not be renewed: %s", error)

    async def renew(self) -> None:
        """Hold all places for another lease."""
        holds = {hold: [quota for quota in hold.quotas if quota["kind"] == "place"] for hold in self._held}
        held = [(str(quota["key"]), hold.thing) for hold, places in holds.items() for quota in places]
        if not held or self._store is None:
            return
        await self._store.renew_quotas(held, LEASE_MS)
        for hold, places in holds.items():
            if places and hold not in self._held:  # given back meanwhile, and perhaps before it was renewed
                await self._store.end_quotas(hold.thing, places, self._now_ms())

    def _allowances(self, user: User, *names: str) -> Iterator[Allowance]:
        """Yield the limits of those names: the key's, the user's, the tenant's."""
        own = dict(user.limits)
        scopes = [("user", user.id, self._user if user.key else self._user | own)]
        if user.key:
            scopes.insert(0, ("key", user.key, own))
        if user.tenant:
            scopes.append(("tenant", user.tenant, self._tenant))
        for name in names:
            for scope, whose, limits in scopes:
                if limits.get(name):
                    yield Allowance(scope, whose, name, limits[name])

    def _check_size(self, user: User, command: ResponseCreate | ConversationCreate) -> None:
        chars = sum(len(message.content) for message in command.messages)
        chars += len((command.instructions if isinstance(command, ResponseCreate) else None) or "")
        for allowance in self._allowances(user, "input_chars"):
            if chars > allowance.limit:
                text = (
                    f"the input has {chars} characters; this {allowance.scope} may send {allowance.limit} in one turn"
                )
                raise ProtocolError("invalid_request", text, param="input")

    async def _take(
        self, thing: str, allowances: Iterable[Allowance], command: Command = NO_COMMAND, **fields: Any
    ) -> Hold:
        allowances = list(allowances)
        quotas = [_quota(allowance, **fields) for allowance in allowances]
        if not quotas or self._store is None:
            return Hold(thing)
        number, wait_ms = await self._store.take_quotas(thing, quotas, self._now_ms(), command)
        if number > 0:
            raise _refusal(allowances[number - 1], wait_ms)
        if number < 0:
            return Hold(thing)
        hold = Hold(thing, quotas)
        self._held.add(hold)
        return hold

    async def _end(self, hold: Hold, quotas: list[Quota], kept: set[str]) -> None:
        """Give back all quotas but those of the kinds that are kept. A second time it changes nothing."""
        self._held.discard(hold)
        ending = [quota for quota in quotas if quota["kind"] not in kept]
        if ending and self._store is not None:
            await self._store.end_quotas(hold.thing, ending, self._now_ms())


def own_limits(given: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Check a key's or a token's own limits. Raises ValueError naming what is wrong."""
    for name, value in given.items():
        if name not in LIMIT_NAMES:
            raise ValueError(f"'{name[:60]}' is no limit; there are {', '.join(sorted(LIMIT_NAMES))}")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"the limit '{name}' must be a whole number from 1 on")
        if value > MAX_LIMIT:
            raise ValueError(f"the limit '{name}' is more than {MAX_LIMIT}; leave it out")
    return tuple(sorted(given.items()))


def _quota(allowance: Allowance, *, owner: str = "", conversation: str | None = None) -> Quota:
    kind = _KINDS[allowance.name][0]
    quota: Quota = {"kind": kind, "name": allowance.name, "key": allowance.key, "limit": allowance.limit}
    match kind:
        case "window":
            quota |= {"span": MINUTE_MS}
        case "place":
            quota |= {"lease": LEASE_MS, "retry": BUSY_RETRY_MS}
        case "conversations":
            quota |= {"lease": MAKING_MS, "owner": owner}
        case "turns":
            # The owner's length keeps "a:b" + "c" apart from "a" + "b:c".
            key = f"{allowance.name}:{allowance.scope}:{len(allowance.whose)}:{allowance.whose}:{conversation}"
            quota |= {"key": key, "lease": MAKING_MS, "conversation": conversation}
    return quota


def _refusal(allowance: Allowance, wait_ms: int) -> ProtocolError:
    words = _KINDS[allowance.name][1]
    text = f"this {allowance.scope} may have {allowance.limit} {words}"
    if wait_ms >= 0:
        return ProtocolError("rate_limit_exceeded", f"{text}; try again later", retry_after_ms=wait_ms)
    what = "delete some" if allowance.name == "conversations" else "begin a new one"
    return ProtocolError("invalid_request", f"{text}; {what}", param="conversation")


def _wire(allowance: Allowance, used: int | None, wait_ms: int) -> dict[str, Any]:
    return {
        "scope": allowance.scope,
        "name": allowance.name,
        "limit": allowance.limit,
        "remaining": None if used is None else max(0, allowance.limit - used),
        "resets_in_ms": wait_ms if wait_ms >= 0 else None,
    }
