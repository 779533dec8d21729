"""Frames in, commands out: what a client may ask, checked before anything else sees it.

The commands and their tolerance rules are in protocol/README.md, section "Client to server".
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from protocol.codec import decode_object
from protocol.errors import ProtocolError, excerpt
from protocol.items import Message, parse_input

MAX_STOP_STRINGS: Final = 16  # vLLM itself has no bound; OpenAI takes 4
MAX_PAGE: Final = 1000  # rows in one list answer
DEFAULT_PAGE: Final = 100

Id = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.:-]{1,128}\Z")]
StreamId = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.-]{1,256}\Z")]
CommandId = Annotated[str, Meta(min_length=1, max_length=256)]
ModelId = Annotated[str, Meta(min_length=1, max_length=256)]
Metadata = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]
StopString = Annotated[str, Meta(min_length=1, max_length=256)]
PageLimit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What every command may carry: the client's idempotency key and the lane."""

    TYPE: ClassVar[str]

    id: CommandId | None = None
    stream_id: StreamId | None = None


class SamplingFields(Command, frozen=True, kw_only=True):
    """How to draw tokens, named as OpenAI and vLLM name it; None leaves the model's default."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    ignore_eos: bool | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)] | None = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Return `stop` as a tuple, whichever way it was sent."""
        match self.stop:
            case None:
                return ()
            case str():
                return (self.stop,)
            case _:
                return tuple(self.stop)


class ConversationRef(msgspec.Struct, frozen=True):
    """`{"id": …}`, the long way to name a conversation."""

    id: Id


class ResponseCreate(SamplingFields, frozen=True, kw_only=True):
    """`response.create`: the POST /v1/responses body, flat.

    messages: `input`, parsed. plain: typed as bare text, so it continues the connection's own conversation.
    """

    TYPE: ClassVar[str] = "response.create"

    model: ModelId | None = None
    instructions: str | None = None
    previous_response_id: Id | None = None
    conversation: Id | ConversationRef | None = None
    store: bool | None = None
    generate: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Metadata | None = None
    messages: tuple[Message, ...] = ()
    plain: bool = False

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, ConversationRef) else self.conversation

    @property
    def is_stored(self) -> bool:
        return self.store is not False


class ResponseCancel(Command, frozen=True, kw_only=True):
    """Stop a response; without an id, the one running on this lane of this connection."""

    TYPE: ClassVar[str] = "response.cancel"

    response_id: Id | None = None


class ResponseRetrieve(Command, frozen=True, kw_only=True):
    """Send a response's events after `starting_after` (None: all), then go on live."""

    TYPE: ClassVar[str] = "response.retrieve"

    response_id: Id
    starting_after: Annotated[int, Meta(ge=-1)] | None = None


class ResponseSteer(Command, frozen=True, kw_only=True):
    """Not supported; answered by name, since some agents probe for it."""

    TYPE: ClassVar[str] = "response.steer"


class ResponseProcessed(Command, frozen=True, kw_only=True):
    """A client's note to the server; nothing is done with it."""

    TYPE: ClassVar[str] = "response.processed"


class ConversationCreate(Command, frozen=True, kw_only=True):
    """Make a conversation, with first items if given."""

    TYPE: ClassVar[str] = "conversation.create"

    metadata: Metadata | None = None
    messages: tuple[Message, ...] = ()


class ConversationRetrieve(Command, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "conversation.retrieve"

    conversation: Id


class ConversationUpdate(Command, frozen=True, kw_only=True):
    """Replace a conversation's metadata."""

    TYPE: ClassVar[str] = "conversation.update"

    conversation: Id
    metadata: Metadata


class ConversationDelete(Command, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "conversation.delete"

    conversation: Id


class ConversationList(Command, frozen=True, kw_only=True):
    """List conversations, most recently used first."""

    TYPE: ClassVar[str] = "conversation.list"

    after: Id | None = None
    limit: PageLimit | None = None


class ConversationItemsList(Command, frozen=True, kw_only=True):
    """List a conversation's items, oldest first."""

    TYPE: ClassVar[str] = "conversation.items.list"

    conversation: Id
    after: Id | None = None
    limit: PageLimit | None = None


class ModelList(Command, frozen=True, kw_only=True):
    TYPE: ClassVar[str] = "model.list"


class SessionUpdate(Command, frozen=True, kw_only=True):
    """Sign in by frame, where a client can set no header."""

    TYPE: ClassVar[str] = "session.update"

    token: Annotated[str, Meta(min_length=1, max_length=16_384)] | None = None


_COMMANDS: Final[dict[str, type[Command]]] = {
    command.TYPE: command
    for command in (
        ResponseCreate,
        ResponseCancel,
        ResponseRetrieve,
        ResponseSteer,
        ResponseProcessed,
        ConversationCreate,
        ConversationRetrieve,
        ConversationUpdate,
        ConversationDelete,
        ConversationList,
        ConversationItemsList,
        ModelList,
        SessionUpdate,
    )
}
_STREAM_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")
# msgspec ends its texts with the place: "Expected `int`, got `str` - at `$.top_k`"
_PLACE: Final = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")


def parse_command(frame: str | bytes) -> Command:
    """Turn one frame into a command.

    A frame that does not start with `{` is a user's turn in plain text. Unknown keys are ignored: real clients send
    many. Raises ProtocolError naming the field at fault, with the command's `id` and lane where they could be read.
    """
    data = frame.encode("utf-8", "surrogatepass") if isinstance(frame, str) else frame
    if not data.lstrip()[:1] == b"{":
        return _plain_turn(data)
    fields = decode_object(data)
    try:
        return _build(_command_type(fields), fields)
    except ProtocolError as error:
        error.command_id = _readable(fields.get("id"), limit=256)
        error.stream_id = _readable_stream_id(fields.get("stream_id"))
        raise


def plain_turn(text: str) -> ResponseCreate:
    """Return the command that a line of plain text stands for.

    Raises ProtocolError when there is nothing in it.
    """
    if not text.strip():
        raise ProtocolError("invalid_request", "the message is empty; type some text", param="input")
    return ResponseCreate(messages=(Message("user", text),), truncation="auto", plain=True)


def _plain_turn(data: bytes) -> ResponseCreate:
    try:
        return plain_turn(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise ProtocolError("invalid_json", "the frame is not valid UTF-8; send text or a JSON object") from None


def _command_type(fields: dict[str, Any]) -> type[Command]:
    if "type" not in fields:
        return ResponseCreate
    kind = fields["type"]
    command = _COMMANDS.get(kind) if isinstance(kind, str) else None
    if command is None:
        shown = f"'{excerpt(kind)}'" if isinstance(kind, str) else "which is not a string"
        raise ProtocolError(
            "invalid_request", f"unknown type {shown}; known types are {', '.join(sorted(_COMMANDS))}", param="type"
        )
    return command


def _build(kind: type[Command], fields: dict[str, Any]) -> Command:
    """Check the fields and build the command; `input` and `items` are parsed into `messages`."""
    own = {key: value for key, value in fields.items() if key not in ("messages", "plain")}
    try:
        command = msgspec.convert(own, kind)
    except msgspec.ValidationError as error:
        raise _translate(error) from None
    match command:
        case ResponseCreate():
            _check_unsupported(fields)
            return msgspec.structs.replace(command, messages=_input_of(command, fields))
        case ConversationCreate() if fields.get("items") is not None:
            return msgspec.structs.replace(command, messages=parse_input(fields["items"], param="items"))
        case _:
            return command


def _input_of(command: ResponseCreate, fields: dict[str, Any]) -> tuple[Message, ...]:
    value = fields.get("input")
    messages = () if value is None else parse_input(value)
    if not messages and command.generate is not False:
        raise ProtocolError(
            "invalid_request", "input is required: a string, or a list with at least one message", param="input"
        )
    return messages


def _check_unsupported(fields: dict[str, Any]) -> None:
    """Refuse what would change the answer if it were ignored; everything else unknown is ignored."""
    text = fields.get("text")
    if isinstance(text, dict) and isinstance(text.get("format"), dict):
        kind = text["format"].get("type", "text")
        if kind != "text":
            raise ProtocolError(
                "invalid_request",
                "text.format of a type other than 'text' is not supported yet; leave it out",
                param="text.format.type",
            )
    if fields.get("tool_choice") not in (None, "auto", "none"):
        raise ProtocolError(
            "invalid_request", "tools cannot be forced yet; tool_choice must be 'auto' or 'none'", param="tool_choice"
        )
    if fields.get("conversation") is not None and fields.get("store") is False:
        raise ProtocolError(
            "invalid_request", "a conversation is always stored: leave out store:false or conversation", param="store"
        )


def _translate(error: msgspec.ValidationError) -> ProtocolError:
    """Turn msgspec's text into ours, with the field in `param`."""
    text = str(error)
    place = _PLACE.search(text)
    missing = re.match(r"Object missing required field `([^`]*)`", text)
    param = place.group(1) if place else None
    if missing:
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return ProtocolError("invalid_request", f"{param} is required", param=param)
    reason = _PLACE.sub("", text)
    reason = reason[:1].lower() + reason[1:]
    return ProtocolError("invalid_request", f"{param or 'the command'}: {reason}", param=param)


def _readable(value: Any, *, limit: int) -> str | None:
    return value if isinstance(value, str) and len(value) <= limit else None


def _readable_stream_id(value: Any) -> str | None:
    return value if isinstance(value, str) and _STREAM_ID.fullmatch(value) else None
