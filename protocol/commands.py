"""Frames in, commands out: what a client may ask, checked before anything else sees it. Long, as it is a list of them.

The commands and their tolerance rules are in protocol/README.md, section "Client to server".
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from protocol.codec import decode_object
from protocol.errors import ProtocolError, excerpt
from protocol.explain import explain
from protocol.fields import (
    MAX_COMMAND_ID_CHARS,
    MAX_TOKENS,
    CommandId,
    Dimensions,
    Id,
    MaxOutputTokens,
    Metadata,
    MinP,
    MinTokens,
    ModelId,
    Penalty,
    RepetitionPenalty,
    SearchQuery,
    Seed,
    SequenceNumber,
    StopString,
    StopStrings,
    StreamId,
    Temperature,
    Text,
    Texts,
    Token,
    TopK,
    TopN,
    TopP,
)
from protocol.items import Message, json_type, parse_input, unknown_call
from protocol.options import PLAIN, Options, parse_options
from protocol.unsupported import check_supported

MAX_PAGE: Final = 1000  # rows in one list answer
DEFAULT_PAGE: Final = 100

PageLimit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What every command may carry: the client's idempotency key and the lane."""

    TYPE: ClassVar[str]

    id: CommandId | None = None
    stream_id: StreamId | None = None


class SamplingFields(Command, frozen=True, kw_only=True):
    """How to draw tokens, named as OpenAI and vLLM name it; None leaves the model's default."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    max_output_tokens: MaxOutputTokens | None = None
    min_tokens: MinTokens | None = None
    ignore_eos: bool | None = None
    stop: StopString | StopStrings | None = None

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

    messages: `input`, parsed. options: tools, forms and more, parsed. plain: typed as bare text, so it continues the
    connection's own conversation.
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
    service_tier: str | None = None
    task: Literal["summarize"] | None = None
    messages: tuple[Message, ...] = ()
    options: Options = PLAIN
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
    starting_after: SequenceNumber | None = None


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
    """Show one conversation."""

    TYPE: ClassVar[str] = "conversation.retrieve"

    conversation: Id


class ConversationUpdate(Command, frozen=True, kw_only=True):
    """Replace a conversation's metadata."""

    TYPE: ClassVar[str] = "conversation.update"

    conversation: Id
    metadata: Metadata


class ConversationDelete(Command, frozen=True, kw_only=True):
    """Delete a conversation with everything in it."""

    TYPE: ClassVar[str] = "conversation.delete"

    conversation: Id


class ConversationSubscribe(Command, frozen=True, kw_only=True):
    """See every turn of a conversation as it happens, whoever causes it."""

    TYPE: ClassVar[str] = "conversation.subscribe"

    conversation: Id


class ConversationUnsubscribe(Command, frozen=True, kw_only=True):
    """See no more of it."""

    TYPE: ClassVar[str] = "conversation.unsubscribe"

    conversation: Id


class ConversationList(Command, frozen=True, kw_only=True):
    """List conversations, most recently used first."""

    TYPE: ClassVar[str] = "conversation.list"

    after: Id | None = None
    limit: PageLimit | None = None


class ConversationSearch(Command, frozen=True, kw_only=True):
    """Find conversations by their titles and by what was said in them, most recently used first."""

    TYPE: ClassVar[str] = "conversation.search"

    query: SearchQuery
    after: Id | None = None
    limit: PageLimit | None = None


class ConversationItemsList(Command, frozen=True, kw_only=True):
    """List a conversation's items, oldest first."""

    TYPE: ClassVar[str] = "conversation.items.list"

    conversation: Id
    after: Id | None = None
    limit: PageLimit | None = None


class ModelList(Command, frozen=True, kw_only=True):
    """List the models, with their state."""

    TYPE: ClassVar[str] = "model.list"


class ModelCommand(Command, frozen=True, kw_only=True):
    """What concerns one model; needs the right `admin`."""

    model: ModelId


class ModelLoad(ModelCommand, frozen=True, kw_only=True):
    """Load it now, not when somebody asks for it."""

    TYPE: ClassVar[str] = "model.load"


class ModelUnload(ModelCommand, frozen=True, kw_only=True):
    """Unload it when its last answer has ended."""

    TYPE: ClassVar[str] = "model.unload"


class ModelPin(ModelCommand, frozen=True, kw_only=True):
    """Load it and keep it, whoever needs the room; or do so no more."""

    TYPE: ClassVar[str] = "model.pin"

    pinned: bool = True


class ModelAdd(ModelCommand, frozen=True, kw_only=True):
    """Serve one more model. settings: as in the server's settings file."""

    TYPE: ClassVar[str] = "model.add"

    settings: dict[str, Any]


class ModelRemove(ModelCommand, frozen=True, kw_only=True):
    """Serve it no more; what runs may end."""

    TYPE: ClassVar[str] = "model.remove"


class ModelAlias(ModelCommand, frozen=True, kw_only=True):
    """Give the model another name, or move that name to it."""

    TYPE: ClassVar[str] = "model.alias"

    alias: ModelId


class LimitsRetrieve(Command, frozen=True, kw_only=True):
    """Show the account's limits, and what is left of each."""

    TYPE: ClassVar[str] = "limits.retrieve"


class EmbeddingCreate(Command, frozen=True, kw_only=True):
    """Turn texts into vectors (OpenAI's POST /v1/embeddings)."""

    TYPE: ClassVar[str] = "embedding.create"

    model: ModelId
    input: Text | Texts
    dimensions: Dimensions | None = None
    encoding_format: Literal["float", "base64"] | None = None


class RerankCreate(Command, frozen=True, kw_only=True):
    """Sort documents by how well they answer a query (Cohere's and Jina's POST /rerank)."""

    TYPE: ClassVar[str] = "rerank.create"

    model: ModelId
    query: Text
    documents: Texts
    top_n: TopN | None = None
    return_documents: bool | None = None


class ClassifyCreate(Command, frozen=True, kw_only=True):
    """Say of texts how likely each of the model's labels is (vLLM's POST /classify)."""

    TYPE: ClassVar[str] = "classify.create"

    model: ModelId
    input: Text | Texts


class SessionUpdate(Command, frozen=True, kw_only=True):
    """Sign in by frame, where a client can set no header."""

    TYPE: ClassVar[str] = "session.update"

    token: Token | None = None


COMMANDS: Final[dict[str, type[Command]]] = {
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
        ConversationSubscribe,
        ConversationUnsubscribe,
        ConversationList,
        ConversationSearch,
        ConversationItemsList,
        ModelList,
        ModelLoad,
        ModelUnload,
        ModelPin,
        ModelAdd,
        ModelRemove,
        ModelAlias,
        LimitsRetrieve,
        EmbeddingCreate,
        RerankCreate,
        ClassifyCreate,
        SessionUpdate,
    )
}
# Fields of ours that no client sets: `messages` comes out of `input` or `items`, `options` out of `tools` and others.
_OURS: Final = frozenset({"messages", "options", "plain"})
_STREAM_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_WHITE_SPACE: Final = b" \t\r\n"  # JSON's (RFC 8259, section 2)


def parse_command(frame: str | bytes) -> Command:
    """Turn one frame into a command.

    A frame that does not start with `{` is a user's turn in plain text. Unknown keys are ignored: real clients send
    many. Raises ProtocolError naming the field at fault, with the command's `id` and lane where they could be read.
    """
    data = frame.encode("utf-8", "surrogatepass") if isinstance(frame, str) else frame
    data = data.removeprefix(_BYTE_ORDER_MARK)
    if not data.lstrip(_WHITE_SPACE).startswith(b"{"):
        return _plain_turn(data)
    fields = decode_object(data)
    try:
        return _build(_command_type(fields), fields)
    except ProtocolError as error:
        error.command_id = _readable_id(fields.get("id"))
        error.stream_id = _readable_stream_id(fields.get("stream_id"))
        error.previous_response_id = _readable_id(fields.get("previous_response_id"))
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
    kind = fields.get("type", ResponseCreate.TYPE)
    command = COMMANDS.get(kind) if isinstance(kind, str) else None
    if command is None:
        fault = f"unknown type '{excerpt(kind)}'" if isinstance(kind, str) else f"type is {json_type(kind)}"
        known = ", ".join(sorted(COMMANDS))
        raise ProtocolError("invalid_request", f"{fault}; it must be one of {known}", param="type")
    return command


def _build(kind: type[Command], fields: dict[str, Any]) -> Command:
    """Check the fields and build the command; `input` and `items` are parsed into `messages`."""
    own = {key: value for key, value in fields.items() if key not in _OURS}
    try:
        command = msgspec.convert(own, kind)
    except msgspec.ValidationError:
        raise explain(kind, own) from None
    match command:
        case ResponseCreate():
            check_supported(fields)
            _check_together(command)
            options = parse_options(fields)
            return msgspec.structs.replace(command, messages=_input_of(command, fields), options=options)
        case ConversationCreate() if fields.get("items") is not None:
            return msgspec.structs.replace(command, messages=parse_input(fields["items"], param="items"))
        case _:
            return command


def _input_of(command: ResponseCreate, fields: dict[str, Any]) -> tuple[Message, ...]:
    value = fields.get("input")
    messages = () if value is None else parse_input(value)
    is_document = [message.role != "system" and bool(message.content.strip()) for message in messages]
    if command.task is not None and command.generate is not False and not any(is_document):
        raise ProtocolError("invalid_request", "input is required: the text to summarize", param="input")
    if command.task is not None and any(message.images for message in messages):
        raise ProtocolError("invalid_request", "summaries are of text; leave images out", param="input")
    if all(message.reasoning for message in messages) and command.generate is not False:
        hint = "; 'messages' is Chat Completions' name for it" if "messages" in fields else ""
        raise ProtocolError(
            "invalid_request",
            f"input is required: a string with some text, or a list with at least one message{hint}",
            param="input",
        )
    if command.conversation is None and command.previous_response_id is None:
        _check_calls(messages, value)
    return messages


def _check_calls(messages: tuple[Message, ...], items: Any) -> None:
    """Refuse the output of a call that was never made. Where something was said before, the store has to be asked."""
    unknown = unknown_call(messages)
    if unknown is None:
        return
    outputs = (index for index, item in enumerate(items) if item.get("type") == "function_call_output")
    index = next(index for index in outputs if items[index]["call_id"] == unknown)
    raise no_such_call(unknown, f"input[{index}].call_id")


def no_such_call(call_id: str, param: str = "input") -> ProtocolError:
    """Return the error for a `function_call_output` that belongs to nothing."""
    text = f"there is no function_call with the call_id '{excerpt(call_id)}' before its output"
    return ProtocolError("invalid_request", text, param=param)


def _check_together(command: ResponseCreate) -> None:
    """Refuse fields that are right one by one and wrong together."""
    if command.conversation is not None and command.store is False:
        raise ProtocolError(
            "invalid_request", "a conversation is always stored: leave out store:false or conversation", param="store"
        )
    if (command.min_tokens or 0) > (command.max_output_tokens or MAX_TOKENS):
        raise ProtocolError(
            "invalid_request",
            f"min_tokens ({command.min_tokens}) must not be more than max_output_tokens ({command.max_output_tokens})",
            param="min_tokens",
        )


def _readable_id(value: Any) -> str | None:
    return value if isinstance(value, str) and 1 <= len(value) <= MAX_COMMAND_ID_CHARS else None


def _readable_stream_id(value: Any) -> str | None:
    return value if isinstance(value, str) and _STREAM_ID.fullmatch(value) else None
