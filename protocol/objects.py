"""What is inside the messages that the server sends, as types: see messages.py."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class Waiting(msgspec.Struct):
    """Why a response does not run yet. position: turns before this one. progress: 0 to 1."""

    reason: Literal["admission", "conversation", "model_loading"]
    position: int | UnsetType = UNSET
    estimated_wait_ms: int | UnsetType = UNSET
    progress: float | UnsetType = UNSET
    detail: str | UnsetType = UNSET


class ContextNotice(msgspec.Struct):
    """What was left out so that the turn fits the model's window."""

    dropped_turns: int
    context_length: int


class UsageNotice(msgspec.Struct):
    """What a summary has cost so far, in tokens."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int


class SummarizeNotice(msgspec.Struct):
    """How far a summary is. parts: 0 where the document fits. ends: where their summaries end, in characters."""

    parts: int
    done: int
    ends: list[int]
    usage: UsageNotice


class Notice(msgspec.Struct):
    """What was done to a response's context, or how far its task is."""

    context: ContextNotice | UnsetType = UNSET
    summarize: SummarizeNotice | UnsetType = UNSET


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """Text of the model's."""

    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[dict[str, Any]] | UnsetType = UNSET


class InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    """Text of the user's or the system's."""

    text: str


class InputImage(msgspec.Struct, tag_field="type", tag="input_image"):
    """An image that a user shows. image_url: a data URL."""

    image_url: str
    detail: Literal["auto"]


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    """A message. response_id: the turn that it belongs to, in lists and subscriptions."""

    id: str
    role: Literal["system", "user", "assistant"]
    status: Literal["in_progress", "completed", "incomplete"]
    content: list[OutputText | InputText | InputImage]
    response_id: str | UnsetType = UNSET


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """What the model thought."""

    text: str


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    """A thought before the answer."""

    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    summary: list[dict[str, Any]]
    content: list[ReasoningText]
    response_id: str | UnsetType = UNSET


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    """A function that the model calls. arguments: JSON."""

    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    call_id: str
    name: str
    arguments: str
    response_id: str | UnsetType = UNSET


class FunctionCallOutputItem(msgspec.Struct, tag_field="type", tag="function_call_output"):
    """What a function gave."""

    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    call_id: str
    output: str
    response_id: str | UnsetType = UNSET


OutputItem = MessageItem | ReasoningItem | FunctionCallItem
AnyItem = OutputItem | FunctionCallOutputItem


class Id(msgspec.Struct):
    """A conversation, by its id."""

    id: str


class InputTokensDetails(msgspec.Struct):
    """Of them, found in a cache, and written to one."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(msgspec.Struct):
    """Of them, thoughts."""

    reasoning_tokens: int


class Usage(msgspec.Struct):
    """Tokens of one response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct):
    """Why a response failed. code: of the table in protocol/README.md."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    """Why a response was cut short."""

    reason: Literal["max_output_tokens", "cancelled", "content_filter"]


class TextFormat(msgspec.Struct):
    """The form of the answer's text; what else it has depends on the type."""

    type: str
    name: str | UnsetType = UNSET
    schema: dict[str, Any] | UnsetType = UNSET
    strict: bool | UnsetType | None = UNSET
    choices: list[str] | UnsetType = UNSET
    grammar: str | UnsetType = UNSET


class TextSettings(msgspec.Struct):
    """How text is written."""

    format: TextFormat


class ReasoningSettings(msgspec.Struct):
    """How long the model may think."""

    effort: str | None
    summary: None


class Response(msgspec.Struct):
    """The response object. output and usage are filled in at the end."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed"]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    conversation: Id | None
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    text: TextSettings
    usage: Usage | None
    temperature: float | None
    top_p: float | None
    max_output_tokens: int | None
    truncation: Literal["auto", "disabled"]
    store: bool
    metadata: dict[str, str]
    reasoning: ReasoningSettings
    top_logprobs: int | None
    tokenwire: Notice | UnsetType = UNSET


class Conversation(msgspec.Struct):
    """A conversation. running_response: the id of the response that is answered in it now."""

    id: str
    object: Literal["conversation"]
    created_at: int
    updated_at: int
    metadata: dict[str, str]
    running_response: str | None


class Found(msgspec.Struct):
    """A conversation that was found. item_id: the newest message that fits; null where the title alone does."""

    conversation: Conversation
    item_id: str | None
    excerpt: str


class DeletedConversation(msgspec.Struct):
    """A conversation that is gone."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: bool


class RunningResponse(msgspec.Struct):
    """A turn that runs or waits. output, text: up to sequence_number, which is -1 before the first event."""

    response: Response
    output: list[OutputItem]
    text: str
    sequence_number: int


class Limit(msgspec.Struct):
    """A limit. scope: `user`, `tenant` or `key`. remaining, resets_in_ms: null where they cannot be said."""

    scope: str
    name: str
    limit: int
    remaining: int | None
    resets_in_ms: int | None


class Session(msgspec.Struct):
    """A sign-in. user: the account's id. expires_at: Unix time."""

    user: str
    tenant: str | None
    rights: list[str]
    expires_at: int | None


class ErrorDetails(msgspec.Struct):
    """What was wrong. code: of the table in protocol/README.md. param: the field at fault."""

    type: str
    code: str
    message: str
    param: str | None
    retry_after_ms: int | UnsetType = UNSET
