"""What the business layer asks of the store. `redis.RedisStore` is the one that exists.

Everything belongs to an owner; an id of another owner's is treated as one that does not exist. Every write may be
repeated (a lost reply is retried), so every write is idempotent. Times are Unix seconds, durations seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from protocol.items import Item

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed"]
Kind = Literal["conversation", "response", "previous_response"]


class StoreError(Exception):
    """Something the store refused or could not do."""


class StoreUnavailableError(StoreError):
    """Redis does not answer, or answers that it cannot write now (READONLY, LOADING, OOM). Trying again may help."""


class NotFoundError(StoreError):
    """No such conversation or response for this owner: never was, deleted, or older than the retention."""

    def __init__(self, kind: Kind, missing: str) -> None:
        super().__init__(f"{kind} {missing} not found")
        self.kind = kind
        self.id = missing


class NotInConversationError(StoreError):
    """`previous_response_id` belongs to another conversation than the one named."""


class ResponseRunningError(StoreError):
    """`previous_response_id` names a response that has not ended."""


class TurnQueueFullError(StoreError):
    """Too many turns wait for this conversation."""


class FencedError(StoreError):
    """Another gateway has taken this response over (its epoch is higher); stop writing."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """running_response: the turn being answered now, or None. head: the newest ended response of the shown branch."""

    id: str
    owner: str
    created_at: int
    updated_at: int
    metadata: dict[str, str] = field(default_factory=dict)
    head: str | None = None
    running_response: str | None = None


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A turn to be acknowledged.

    response_id: made by the caller, so that repeating the write is harmless.
    conversation: None for a plain `previous_response_id` chain (or a first turn outside conversations).
    previous: the parent the client named. None: in a conversation, its head when the turn's time comes.
    command_id: the client's own idempotency key, or None.
    items: the turn's input, in order.
    request: what `finish` or a takeover needs to make the answer (opaque JSON).
    snapshot: the response object as a stranger to this gateway should see it until it ends (wire JSON).
    """

    response_id: str
    owner: str
    conversation: str | None
    previous: str | None
    command_id: str | None
    model: str
    created_at: int
    items: tuple[Item, ...]
    request: bytes
    snapshot: bytes
    gateway: str


@dataclass(frozen=True, slots=True)
class History:
    """What was said before a turn, oldest first. head: the response it ends with, None when there is nothing before."""

    items: tuple[Item, ...]
    head: str | None


@dataclass(frozen=True, slots=True)
class Begun:
    """response_id: the turn's; an earlier one's if `duplicate` (same owner, same command_id).

    position: turns of the conversation before this one.
    history: what the turn follows, where its time has come with it. None: `start` has to be asked.
    """

    response_id: str
    duplicate: bool
    position: int
    history: History | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a response: one atomic write.

    output: the answer's items, kept for later turns (partial text too).
    snapshot: the final response object (wire JSON).
    events: (sequence_number, encoded event) not yet in the journal, the terminal one last.
    """

    response_id: str
    epoch: int
    status: ResponseStatus
    output: tuple[Item, ...]
    snapshot: bytes
    events: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as Redis has it.

    previous: what it follows; until its turn comes, what the client named. snapshot: wire JSON of the response object.
    epoch: 1, and a higher one with each takeover. takeovers: how many there were. last_sequence_number: of the newest
    event known, -1 if none.
    """

    id: str
    owner: str
    conversation: str | None
    previous: str | None
    status: ResponseStatus
    model: str
    created_at: int
    epoch: int
    takeovers: int
    gateway: str
    items: tuple[Item, ...]
    output: tuple[Item, ...]
    request: bytes
    snapshot: bytes
    last_sequence_number: int


class JournalEntry(msgspec.Struct, frozen=True, gc=False):
    """One event on its way to Redis. Stream entry id is `<epoch>-<sequence_number>`."""

    response_id: str
    epoch: int
    sequence_number: int
    data: bytes


class Store(Protocol):
    """Conversations, responses and journals in one Redis. Each call raises StoreUnavailableError when Redis is away."""

    # Life
    async def connect(self) -> None:
        """Check that the server answers and is usable; log a warning for an eviction policy other than noeviction."""

    async def close(self) -> None:
        """Close every connection; idempotent."""

    async def ping(self) -> None:
        """Return quickly if Redis answers and accepts writes; bounded in time."""

    # Conversations
    async def create_conversation(
        self, conversation: Conversation, items: Sequence[Item], command_id: str | None
    ) -> Conversation:
        """Make it with its first items; the same owner and command_id again return the first one's."""

    async def get_conversation(self, owner: str, conversation: str) -> Conversation:
        """Return one; raises NotFoundError."""

    async def update_conversation(self, owner: str, conversation: str, metadata: dict[str, str]) -> Conversation:
        """Replace the metadata; raises NotFoundError."""

    async def delete_conversation(self, owner: str, conversation: str) -> None:
        """Delete it with its responses and journals; raises NotFoundError when it is not there."""

    async def list_conversations(self, owner: str, *, after: str | None, limit: int) -> tuple[list[Conversation], bool]:
        """Return at most `limit`, most recently used first, after the one named, and whether more follow."""

    async def list_items(
        self, owner: str, conversation: str, *, after: str | None, limit: int
    ) -> tuple[list[Item], bool]:
        """Return at most `limit` items of the shown branch, oldest first, and whether more follow.

        The input of running and waiting turns comes last: an acknowledged turn is always listed. Nothing follows an
        `after` that is not on the shown branch.
        """

    # Turns
    async def history(self, owner: str, *, conversation: str | None, previous: str | None) -> History:
        """Return what a turn begun now would follow (conversation's head, or the chain that ends with `previous`)."""

    async def begin(self, turn: NewTurn) -> Begun:
        """Acknowledge a turn: from now on it is in the conversation, exactly once, waiting for its time or running.

        Raises NotFoundError, NotInConversationError, ResponseRunningError, TurnQueueFullError.
        """

    async def start(self, response_id: str, epoch: int) -> History | int:
        """Claim the turn's time: return what it follows, or its position (> 0) while others are before it.

        Repeating it returns the same history, also after a takeover. Raises NotFoundError; FencedError also when the
        response has ended (it was cancelled while it waited).
        """

    async def turns(self, conversation: str) -> list[str]:
        """Return the responses of a conversation that have not ended, in their order; the first one runs."""
        ...

    async def finish(self, end: Finish) -> str | None:
        """Write the end of a response: snapshot, output, head, last events, log expiry, retention, all at once.

        Return the response whose turn it now is in that conversation (first in line and not started), or None. The
        first end wins: another one changes nothing. A turn cancelled while it waits keeps its place in the order. An
        end of what was deleted meanwhile is dropped. Raises FencedError.
        """

    async def get_response(self, owner: str, response_id: str) -> StoredResponse:
        """Return one; raises NotFoundError."""

    async def find_command(self, owner: str, command_id: str) -> str | None:
        """Return the response id that this command id made, or None."""

    # Journal
    async def append(self, entries: Sequence[JournalEntry]) -> frozenset[str]:
        """Write events in one round trip; return the ids of responses that were refused: fenced, or
        deleted meanwhile.

        Repeating entries that are there already is harmless.
        """

    async def read_events(self, response_id: str, *, after: int, count: int) -> list[tuple[int, bytes]]:
        """Return (sequence_number, event) after a sequence number (-1: from the start), oldest first; [] if expired."""

    # What administrators have changed of the models: fields as `models.changes` has them
    async def put_model_changes(
        self, fields: Mapping[str, bytes], gone: Sequence[str], *, seen: str, mark: str
    ) -> bool:
        """Write some fields and drop others, unless somebody has changed any since `seen`; return whether it is done.

        seen: the field `mark` as it was read, empty where there was none. mark: what it becomes, like no other.
        """
        ...

    async def model_changes(self) -> dict[str, bytes]:
        """Return all fields."""
        ...

    # Gateways
    async def heartbeat(self, gateway: str, ttl_s: float) -> None:
        """Say that a gateway lives; it counts as gone when it has not said so for `ttl_s`."""

    async def orphans(self) -> dict[str, str]:
        """Return responses not ended whose gateway's heartbeat is gone, and the model of each."""

    async def claim(self, response_id: str, gateway: str) -> StoredResponse | None:
        """Take over an orphan: bump its epoch, set its gateway; None if it is no orphan any more.

        From then on the old epoch's events are refused. A gateway that holds the response already gets it again, with
        the same epoch: the reply to its claim was lost.
        """
