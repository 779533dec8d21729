"""A turn to be answered, and what the store and the engine are told of it."""

from __future__ import annotations

import time
import uuid
import zlib
from dataclasses import dataclass
from typing import Any

import msgspec

from protocol.codec import encode
from protocol.commands import ResponseCreate
from protocol.items import Item, Message
from protocol.response_stream import ResponseHead, response_object
from server.access.auth import tenant_of
from server.chat.context import Context, ContextRequest
from server.engine.base import GenerationRequest, Sampling
from server.models.model import Model
from server.store.base import NewTurn, StoredResponse


@dataclass(frozen=True, slots=True)
class Turn:
    """One request for an answer.

    head: the response's constants. previous: the stored response it follows. before: messages that only the
    connection knows (`store:false`). items: its input.
    """

    owner: str
    head: ResponseHead
    model: Model
    command: ResponseCreate
    previous: str | None
    before: tuple[Message, ...]
    items: tuple[Item, ...]


def make_turn(owner: str, model: Model, command: ResponseCreate, before: tuple[Message, ...] | None) -> Turn:
    """Give a command its ids. before: what a `store:false` response that it continues has said; None if it is stored.

    A stored turn that continues an unstored one brings all of that along as its own input.
    """
    key = uuid.uuid4().hex
    messages = (*before, *command.messages) if before and command.is_stored else command.messages
    head = ResponseHead(
        id=f"resp_{key}",
        item_id=item_id_of(f"resp_{key}"),
        model=model.name,
        created_at=int(time.time()),
        conversation=command.conversation_id,
        previous_response_id=command.previous_response_id,
        parameters=parameters(command),
    )
    return Turn(
        owner=owner,
        head=head,
        model=model,
        command=command,
        previous=command.previous_response_id if before is None else None,
        before=before or (),
        items=message_items(messages, head.id),
    )


def restored_head(stored: StoredResponse) -> ResponseHead:
    """Return the constants of a response that another gateway has begun."""
    command = msgspec.json.decode(stored.request, type=ResponseCreate)
    return ResponseHead(
        id=stored.id,
        item_id=item_id_of(stored.id),
        model=stored.model,
        created_at=stored.created_at,
        conversation=stored.conversation,
        previous_response_id=command.previous_response_id,
        parameters=parameters(command),
    )


def restored_turn(stored: StoredResponse, model: Model) -> Turn:
    """Return the turn of a response that another gateway has begun."""
    command = msgspec.json.decode(stored.request, type=ResponseCreate)
    messages = tuple(item.as_message() for item in stored.items)
    return Turn(
        owner=stored.owner,
        head=restored_head(stored),
        model=model,
        command=msgspec.structs.replace(command, messages=messages),
        previous=stored.previous,
        before=(),
        items=stored.items,
    )


def item_id_of(response_id: str) -> str:
    """Return the id of a response's message: known to every gateway without asking."""
    return response_id.replace("resp_", "msg_", 1)


def message_items(messages: tuple[Message, ...], response_id: str | None) -> tuple[Item, ...]:
    """Return messages as items to keep, each with an id of its own."""
    return tuple(Item.of(message, uuid.uuid4().hex, response_id) for message in messages)


def parameters(command: ResponseCreate) -> dict[str, Any]:
    """Return what the response object repeats of the request."""
    return {
        "temperature": command.temperature,
        "top_p": command.top_p,
        "max_output_tokens": command.max_output_tokens,
        "truncation": command.truncation or "disabled",
        "store": command.is_stored,
        "metadata": command.metadata or {},
        **command.options.as_wire(),
    }


def new_turn(turn: Turn, gateway: str) -> NewTurn:
    """Return the record by which the store acknowledges the turn."""
    return NewTurn(
        response_id=turn.head.id,
        owner=turn.owner,
        conversation=turn.head.conversation,
        previous=turn.previous,
        command_id=turn.command.id,
        model=turn.model.name,
        created_at=turn.head.created_at,
        items=turn.items,
        request=msgspec.json.encode(msgspec.structs.replace(turn.command, messages=())),
        snapshot=encode(response_object(turn.head, status="in_progress")),
        gateway=gateway,
    )


def context_request(turn: Turn, history: tuple[Item, ...], reserve: int) -> ContextRequest:
    """Return what must fit the window. reserve: tokens kept for the answer when trimming."""
    command = turn.command
    return ContextRequest(
        instructions=command.instructions or turn.model.system_prompt,
        history=(*(item.as_message() for item in history), *turn.before),
        messages=command.messages,
        max_output_tokens=command.max_output_tokens,
        reserve=reserve,
        may_trim=command.truncation == "auto",
        options=command.options,
    )


def generation_request(turn: Turn, epoch: int, context: Context, said: int) -> GenerationRequest:
    """Return the engine's order. Its id is unique also when the response is taken up again in a later epoch.

    said: tokens of the answer that the prompt ends with.
    """
    command = turn.command
    least = min(max(0, (command.min_tokens or 0) - said), context.max_tokens)

    def drawn(name: str) -> Any:
        """The client's word, else the model's."""
        value = getattr(command, name)
        return turn.model.sampling.get(name) if value is None else value

    sampling = Sampling(
        max_tokens=context.max_tokens,
        temperature=drawn("temperature"),
        top_p=drawn("top_p"),
        top_k=drawn("top_k"),
        min_p=drawn("min_p"),
        seed=_seed(turn),
        presence_penalty=drawn("presence_penalty"),
        frequency_penalty=drawn("frequency_penalty"),
        repetition_penalty=drawn("repetition_penalty"),
        min_tokens=least or None,
        ignore_eos=bool(command.ignore_eos),
        stop=command.stop_strings,
    )
    return GenerationRequest(
        id=f"{turn.head.id}-{epoch}",
        prompt=context.prompt,
        sampling=sampling,
        cache_salt=tenant_of(turn.owner),
        options=command.options,
    )


def _seed(turn: Turn) -> int | None:
    """Return the turn's seed; where an interrupted answer has to be made again from its beginning, one of its own."""
    command = turn.command
    if command.seed is not None or not command.options.is_guided:
        return command.seed
    return zlib.crc32(turn.head.id.encode())
