"""What the server sends, as types: what docs/asyncapi.json is generated from.

The code that sends (response_stream.py, events.py and server/chat) builds plain objects, which is quicker. Tests
compare recorded frames with these types: no field is sent that is not here, and every message that is here is sent.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from protocol.objects import (
    AnyItem,
    Conversation,
    DeletedConversation,
    ErrorDetails,
    Found,
    Id,
    Limit,
    OutputItem,
    OutputText,
    ReasoningText,
    Response,
    RunningResponse,
    Session,
    Waiting,
)


class ServerMessage(msgspec.Struct, tag_field="type", kw_only=True):
    """stream_id: the lane, where one was named."""

    stream_id: str | UnsetType = UNSET


class Answer(ServerMessage, kw_only=True):
    """What answers one command. id: the command's own."""

    id: str | UnsetType = UNSET


class ResponseEvent(ServerMessage, kw_only=True):
    """An event of a response. sequence_number: counts from 0 within it."""

    sequence_number: int


class ResponseCreated(ResponseEvent, tag="response.created", kw_only=True):
    """The turn is taken."""

    response: Response


class ResponseQueued(ResponseEvent, tag="response.queued", kw_only=True):
    """It waits; sent again when that changes, and every 15 s."""

    response: Response
    tokenwire: Waiting


class ResponseInProgress(ResponseEvent, tag="response.in_progress", kw_only=True):
    """It runs; sent again after every 15 s of silence."""

    response: Response


class ResponseCompleted(ResponseEvent, tag="response.completed", kw_only=True):
    """The model came to its end. A terminal event."""

    response: Response


class ResponseIncomplete(ResponseEvent, tag="response.incomplete", kw_only=True):
    """It was cut short; what there is of it is kept. A terminal event."""

    response: Response


class ResponseFailed(ResponseEvent, tag="response.failed", kw_only=True):
    """It cannot go on; what there is of it is kept. A terminal event."""

    response: Response


class OutputItemAdded(ResponseEvent, tag="response.output_item.added", kw_only=True):
    """An item begins."""

    output_index: int
    item: OutputItem


class OutputItemDone(ResponseEvent, tag="response.output_item.done", kw_only=True):
    """An item is whole."""

    output_index: int
    item: OutputItem


class ContentPartAdded(ResponseEvent, tag="response.content_part.added", kw_only=True):
    """A part of an item begins."""

    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ReasoningText


class ContentPartDone(ResponseEvent, tag="response.content_part.done", kw_only=True):
    """A part of an item is whole."""

    item_id: str
    output_index: int
    content_index: int
    part: OutputText | ReasoningText


class OutputTextDelta(ResponseEvent, tag="response.output_text.delta", kw_only=True):
    """More of the answer's text."""

    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: list[dict[str, Any]]


class OutputTextDone(ResponseEvent, tag="response.output_text.done", kw_only=True):
    """The whole text."""

    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: list[dict[str, Any]]


class ReasoningTextDelta(ResponseEvent, tag="response.reasoning_text.delta", kw_only=True):
    """More of a thought."""

    item_id: str
    output_index: int
    content_index: int
    delta: str


class ReasoningTextDone(ResponseEvent, tag="response.reasoning_text.done", kw_only=True):
    """The whole thought."""

    item_id: str
    output_index: int
    content_index: int
    text: str


class FunctionCallArgumentsDelta(ResponseEvent, tag="response.function_call_arguments.delta", kw_only=True):
    """More of a call's arguments."""

    item_id: str
    output_index: int
    delta: str


class FunctionCallArgumentsDone(ResponseEvent, tag="response.function_call_arguments.done", kw_only=True):
    """The whole arguments."""

    item_id: str
    output_index: int
    name: str
    arguments: str


class ConversationCreated(Answer, tag="conversation.created", kw_only=True):
    """Answers conversation.create."""

    conversation: Conversation


class ConversationRetrieved(Answer, tag="conversation.retrieved", kw_only=True):
    """Answers conversation.retrieve."""

    conversation: Conversation


class ConversationUpdated(Answer, tag="conversation.updated", kw_only=True):
    """Answers conversation.update; tells subscribers."""

    conversation: Conversation


class ConversationDeleted(Answer, tag="conversation.deleted", kw_only=True):
    """Answers conversation.delete; tells subscribers."""

    conversation: DeletedConversation


class ConversationListed(Answer, tag="conversation.listed", kw_only=True):
    """Answers conversation.list."""

    data: list[Conversation]
    has_more: bool


class ConversationSearched(Answer, tag="conversation.searched", kw_only=True):
    """Answers conversation.search. last_id: the last conversation that was looked at; null: there was none."""

    data: list[Found]
    last_id: str | None
    has_more: bool


class ConversationItemsListed(Answer, tag="conversation.items.listed", kw_only=True):
    """Answers conversation.items.list."""

    conversation: str
    data: list[AnyItem]
    has_more: bool


class ConversationSubscribed(Answer, tag="conversation.subscribed", kw_only=True):
    """Answers conversation.subscribe: a snapshot, from which events go on."""

    conversation: Conversation
    items: list[AnyItem]
    has_more: bool
    responses: list[RunningResponse]


class ConversationUnsubscribed(Answer, tag="conversation.unsubscribed", kw_only=True):
    """Answers conversation.unsubscribe."""

    conversation: Id


class ConversationItemAdded(ServerMessage, tag="conversation.item.added", kw_only=True):
    """Tells subscribers of an item of a new turn's input."""

    conversation: str
    item: AnyItem


class ModelListed(Answer, tag="model.listed", kw_only=True):
    """Answers model.list."""

    data: list[dict[str, Any]]


class ModelLoaded(Answer, tag="model.loaded", kw_only=True):
    """Answers model.load."""

    model: dict[str, Any]


class ModelUnloaded(Answer, tag="model.unloaded", kw_only=True):
    """Answers model.unload."""

    model: dict[str, Any]


class ModelPinned(Answer, tag="model.pinned", kw_only=True):
    """Answers model.pin."""

    model: dict[str, Any]


class ModelAdded(Answer, tag="model.added", kw_only=True):
    """Answers model.add."""

    model: dict[str, Any]


class ModelAliased(Answer, tag="model.aliased", kw_only=True):
    """Answers model.alias."""

    model: dict[str, Any]


class ModelRemoved(Answer, tag="model.removed", kw_only=True):
    """Answers model.remove."""

    model: dict[str, Any]


class LimitsRetrieved(Answer, tag="limits.retrieved", kw_only=True):
    """Answers limits.retrieve."""

    data: list[Limit]


class EmbeddingCreated(Answer, tag="embedding.created", kw_only=True):
    """Answers embedding.create."""

    model: str
    data: list[dict[str, Any]]
    usage: dict[str, int]


class RerankCreated(Answer, tag="rerank.created", kw_only=True):
    """Answers rerank.create."""

    model: str
    results: list[dict[str, Any]]
    usage: dict[str, int]


class ClassifyCreated(Answer, tag="classify.created", kw_only=True):
    """Answers classify.create."""

    model: str
    data: list[dict[str, Any]]
    usage: dict[str, int]


class SessionUpdated(Answer, tag="session.updated", kw_only=True):
    """Answers session.update."""

    session: Session


class Error(Answer, tag="error", kw_only=True):
    """A command that cannot be served; the connection stays open."""

    status: int
    error: ErrorDetails


class SteerFailed(Answer, tag="response.steer.failed", kw_only=True):
    """Answers response.steer."""

    status: int
    error: ErrorDetails


SERVER_MESSAGES: Final[tuple[type[ServerMessage], ...]] = (
    ResponseCreated,
    ResponseQueued,
    ResponseInProgress,
    OutputItemAdded,
    ContentPartAdded,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    FunctionCallArgumentsDelta,
    FunctionCallArgumentsDone,
    ContentPartDone,
    OutputItemDone,
    ResponseCompleted,
    ResponseIncomplete,
    ResponseFailed,
    ConversationCreated,
    ConversationRetrieved,
    ConversationUpdated,
    ConversationDeleted,
    ConversationListed,
    ConversationSearched,
    ConversationItemsListed,
    ConversationSubscribed,
    ConversationUnsubscribed,
    ConversationItemAdded,
    ModelListed,
    ModelLoaded,
    ModelUnloaded,
    ModelPinned,
    ModelAdded,
    ModelAliased,
    ModelRemoved,
    LimitsRetrieved,
    EmbeddingCreated,
    RerankCreated,
    ClassifyCreated,
    SessionUpdated,
    Error,
    SteerFailed,
)
