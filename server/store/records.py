"""How conversations, responses and items lie in Redis, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import cast

import msgspec

from protocol.items import Item
from server.store.base import Conversation, ResponseStatus, StoredResponse

_encoder = msgspec.json.Encoder()
_items_decoder = msgspec.json.Decoder(tuple[Item, ...])
_metadata_decoder = msgspec.json.Decoder(dict[str, str])


def encode_items(items: Sequence[Item]) -> bytes:
    """Return items as one JSON list, readable with redis-cli."""
    return _encoder.encode(items)


def decode_items(lists: Iterable[bytes]) -> tuple[Item, ...]:
    """Return the items of several JSON lists as one."""
    return tuple(chain.from_iterable(map(_items_decoder.decode, lists)))


def encode_metadata(metadata: dict[str, str]) -> bytes:
    """Return metadata as a JSON object."""
    return _encoder.encode(metadata)


def conversation(fields: Sequence[bytes]) -> Conversation:
    """Read `conversation_fields` of common.lua."""
    name, owner, created_at, updated_at, metadata, head, running = fields
    return Conversation(
        id=name.decode(),
        owner=owner.decode(),
        created_at=int(created_at),
        updated_at=int(updated_at),
        metadata=_metadata_decoder.decode(metadata),
        head=optional(head),
        running_response=optional(running),
    )


def response(response_id: str, fields: Sequence[bytes]) -> StoredResponse:
    """Read `response_fields` of common.lua."""
    record = dict(zip(fields[::2], fields[1::2], strict=True))
    return StoredResponse(
        id=response_id,
        owner=record[b"owner"].decode(),
        conversation=optional(record[b"conversation"]),
        previous=optional(record.get(b"parent", record[b"previous"])),
        status=cast("ResponseStatus", record[b"status"].decode()),
        model=record[b"model"].decode(),
        created_at=int(record[b"created_at"]),
        epoch=int(record[b"epoch"]),
        takeovers=record[b"epochs"].count(b","),
        gateway=record[b"gateway"].decode(),
        items=_items_decoder.decode(record[b"input"]),
        output=_items_decoder.decode(record[b"output"]),
        request=record[b"request"],
        snapshot=record[b"snapshot"],
        last_sequence_number=int(record[b"last_event"]),
    )


def optional(value: bytes) -> str | None:
    """Read an id where Redis has an empty string for none."""
    return value.decode() or None
