"""protocol/README.md is the spec: its examples run, its tables are the code's."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from protocol.codec import encode, with_stream_id
from protocol.commands import (
    Command,
    ConversationDelete,
    ConversationItemsList,
    ConversationList,
    ConversationRetrieve,
    ConversationSearch,
    ConversationSubscribe,
    ConversationUnsubscribe,
    ConversationUpdate,
    EmbeddingCreate,
    LimitsRetrieve,
    ModelList,
    ModelLoad,
    ModelRemove,
    ResponseCancel,
    ResponseCreate,
    ResponseRetrieve,
    ResponseSteer,
    SessionUpdate,
    parse_command,
)
from protocol.commands import ConversationCreate as Create
from protocol.errors import ERROR_CODES, ProtocolError
from protocol.events import Usage, Waiting, answer, error_event, steer_failed
from protocol.items import Item
from protocol.output import Piece, PieceKind, wire_item
from protocol.response_stream import TRANSITIONS, ResponseHead, ResponseStream
from server.access.auth import User
from server.access.limits import Allowance, _wire
from server.chat.document import Progress
from server.chat.feeds import SNAPSHOT_ITEMS
from server.chat.generation import MAX_ENGINES
from server.chat.reads import wire_conversation
from server.chat.session import wire_session
from server.chat.takeover import MAX_TAKEOVERS
from server.chat.turn import parameters
from server.config import Config
from server.store.base import Conversation

README = Path(__file__).resolve().parents[3] / "protocol" / "README.md"
TEXT = README.read_text(encoding="utf-8")


class Example(NamedTuple):
    """One line of a fenced block. tags: the words of its info string; settings: those with `=`."""

    line: str
    tags: set[str]
    settings: dict[str, str]


def examples() -> Iterator[Example]:
    for info, body in re.findall(r"^```([^\n]*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        words = info.split()
        settings = dict(word.split("=", 1) for word in words if "=" in word)
        for line in body.splitlines():
            yield Example(line, {word for word in words if "=" not in word}, settings)


CLIENT = [example for example in examples() if "client" in example.tags]
SERVER = [example for example in examples() if "server" in example.tags]
RESPONSE = [example for example in examples() if "response" in example.tags]


TOKEN = {"token": "text", "bytes": [116], "logprob": -0.5}
LIKELY = {**TOKEN, "top_logprobs": [TOKEN]}
PARAMETERS = parameters(ResponseCreate(previous_response_id="resp_0"))
RUNNING = ResponseStream(ResponseHead("resp_1", "msg_1", "m", 1, "conv_1", "resp_0", PARAMETERS))
RUNNING.create(waiting=False)
RUNNING.start()
RUNNING.push("x")


def real_response_events() -> Iterator[bytes]:
    """Every kind of event of a response, in every variant."""
    command = parse_command('{"input":"x","temperature":0.2,"max_output_tokens":64}')
    assert isinstance(command, ResponseCreate)
    head = ResponseHead("resp_1", "msg_1", "m", 1, "conv_1", "resp_0", parameters(command))
    for end in ("complete", "interrupt", "fail"):
        stream = ResponseStream(head)
        stream.create(waiting=True)
        stream.queue(Waiting("conversation", position=1))
        stream.queue(Waiting("model_loading", progress=0.4, detail="reading"))
        stream.queue(Waiting("admission", position=3, estimated_wait_ms=1200))
        stream.start()
        stream.note(Progress(12, [310, 655], Usage(4301, 0, 140)).as_notice())
        stream.push("text", (LIKELY,) if end == "interrupt" else ())
        if end == "complete":
            for kind in (PieceKind.REASONING, PieceKind.CALL, PieceKind.ARGUMENTS):
                stream.add(Piece(kind, "text"))
        if end == "complete":
            stream.complete(Usage(1, 0, 1))
        elif end == "interrupt":
            stream.interrupt("cancelled", Usage(1, 0, 1))
        else:
            stream.fail("engine_error", "x", Usage(1, 0, 1))
        yield from (event.data for event in stream.take())


def real_answers() -> Iterator[bytes]:
    """Every answer to a command, as server/chat makes it, with and without an address."""
    conversations = [wire_conversation(Conversation("conv_1", "local", 1, 2, {"a": "b"}, None, r)) for r in (None, "r")]
    deleted = {"id": "conv_1", "object": "conversation.deleted", "deleted": True}
    items = [Item("m", "user", "x", "completed", "r"), Item("m", "assistant", "y", "completed", "r")]
    rows = [item.as_wire() for item in items]
    model = {"id": "m", "object": "model", "created": 1, "owned_by": "tokenwire", "state": "ready", "detail": "ready"}
    model |= {"progress": None, "context_length": 8192, "running": 0, "waiting": 0, "aliases": ["n"], "pinned": False}
    model["replicas"] = [{"id": "m#1", "state": "ready", "devices": ["d"], "running": 0}]
    addresses: list[dict[str, Any]] = [{}, {"id": "k"}, {"id": "k", "stream_id": "s"}]
    for address in addresses:
        for conversation in conversations:
            yield answer("conversation.created", Create(**address), conversation=conversation)
            command: Command = ConversationRetrieve(conversation="c", **address)
            yield answer("conversation.retrieved", command, conversation=conversation)
            command = ConversationUpdate(conversation="c", metadata={}, **address)
            yield answer("conversation.updated", command, conversation=conversation)
            yield answer("conversation.listed", ConversationList(**address), data=[conversation], has_more=False)
            found = {"conversation": conversation, "item_id": "m", "excerpt": "x"}
            page = {"data": [found, {**found, "item_id": None}], "last_id": "conv_1", "has_more": False}
            yield answer("conversation.searched", ConversationSearch(query="x", **address), **page)
            yield answer("conversation.searched", ConversationSearch(query="x", **address), **page | {"last_id": None})
        yield answer("conversation.deleted", ConversationDelete(conversation="c", **address), conversation=deleted)
        command = ConversationItemsList(conversation="c", **address)
        yield answer("conversation.items.listed", command, conversation="c", data=rows, has_more=True)
        yield answer("model.listed", ModelList(**address), data=[model])
        for kind in ("model.loaded", "model.unloaded", "model.pinned", "model.added", "model.aliased"):
            yield answer(kind, ModelLoad(model="m", **address), model=model)
        removed = {"id": "m", "object": "model.removed", "removed": True}
        yield answer("model.removed", ModelRemove(model="m", **address), model=removed)
        limits = [Allowance("user", "ann", "turns_per_minute", 3), Allowance("key", "k", "input_chars", 3)]
        data = [_wire(limits[0], 1, 5), _wire(limits[1], None, -1)]
        yield answer("limits.retrieved", LimitsRetrieve(**address), data=data)
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        vector = {"object": "embedding", "index": 0, "embedding": [0.5]}
        ask = EmbeddingCreate(model="m", input="x", **address)
        yield answer("embedding.created", ask, model="m", data=[vector], usage=usage)
        row = {"index": 0, "relevance_score": 0.5, "document": {"text": "x"}}
        yield answer("rerank.created", ask, model="m", results=[row], usage=usage)
        row = {"index": 0, "label": "a", "probs": [0.5, 0.5], "num_classes": 2}
        yield answer("classify.created", ask, model="m", data=[row], usage=usage)
        for user in (User("acme/ann", frozenset({"instructions"}), expires_at=1.0), User("ann", frozenset({"admin"}))):
            yield answer("session.updated", SessionUpdate(**address), session=wire_session(user))
        subscribe = ConversationSubscribe(conversation="c", **address)
        output = [wire_item(item) for item in RUNNING.output_items()]
        running_now = {"response": RUNNING.snapshot(), "output": output, "text": "x", "sequence_number": 4}
        for running in ([], [running_now]):
            snapshot = {"conversation": conversations[1], "items": rows, "has_more": False, "responses": running}
            yield answer("conversation.subscribed", subscribe, **snapshot)
        unsubscribe = ConversationUnsubscribe(conversation="c", **address)
        yield answer("conversation.unsubscribed", unsubscribe, conversation={"id": "c"})
        yield steer_failed(ResponseSteer(**address))
        yield error_event(ProtocolError("invalid_request", "x", param="input"), ModelList(**address))
        yield error_event(ProtocolError("store_unavailable", "x", retry_after_ms=2000), ModelList(**address))


def real_news() -> Iterator[bytes]:
    """What a subscription hears of, as server/chat/feeds.py makes it, on a lane and on none."""
    item = Item("m", "user", "x", "completed", "r").as_wire()
    for stream_id in (None, "live"):
        added = {"type": "conversation.item.added", "conversation": "c", "item": item}
        deleted = {"id": "c", "object": "conversation.deleted", "deleted": True}
        yield with_stream_id(encode(added), stream_id)
        yield with_stream_id(encode({"type": "conversation.deleted", "conversation": deleted}), stream_id)


REAL: dict[str, list[dict[str, Any]]] = defaultdict(list)
for data in (*real_response_events(), *real_answers(), *real_news()):
    REAL[json.loads(data)["type"]].append(json.loads(data))


def fault(shown: Any, real: Any, path: str = "", *, partial: bool = False) -> str | None:
    """Where an example is not like the real thing: other keys, or other types. partial: keys may be left out."""
    if isinstance(shown, dict) and isinstance(real, dict):
        if path.endswith("metadata"):
            return None
        if shown.keys() - real.keys() or (not partial and shown.keys() != real.keys()):
            return f"{path}: keys {sorted(shown.keys() ^ real.keys())}"
        faults = (fault(shown[key], real[key], f"{path}.{key}", partial=partial) for key in shown)
        return next((found for found in faults if found), None)
    if isinstance(shown, list) and isinstance(real, list):
        if bool(shown) != bool(real):
            return f"{path}: empty or not"
        pairs = zip(shown, real, strict=False)
        return next((found for one, other in pairs if (found := fault(one, other, path, partial=partial))), None)
    same = type(shown) is type(real) or {type(shown), type(real)} <= {int, float}
    return None if same else f"{path}: {type(shown).__name__} for {type(real).__name__}"


@pytest.mark.parametrize("example", CLIENT, ids=lambda example: example.line[:60])
def test_what_clients_send(example):
    """Each example is a command, or fails as its block says."""
    code = example.settings.get("error")
    if code is None:
        command = parse_command(example.line)
        assert isinstance(command, ResponseCreate) or "json" in example.tags
        return
    with pytest.raises(ProtocolError) as caught:
        parse_command(example.line)
    assert (caught.value.code, caught.value.param) == (code, example.settings.get("param"))


@pytest.mark.parametrize("example", SERVER, ids=lambda example: example.line[:60])
def test_what_the_server_sends(example):
    """Each example has the keys and types of an event that the code makes."""
    shown = json.loads(example.line)
    faults = [fault(shown, real, partial="partial" in example.tags) for real in REAL[shown["type"]]]
    assert None in faults, faults


def test_every_event_is_shown():
    """No event is missing from the spec."""
    assert {json.loads(example.line)["type"] for example in SERVER} == REAL.keys()


def test_the_response_object():
    """Every key of the response object, in the spec's one whole example."""
    (example,) = RESPONSE
    real = next(event["response"] for event in REAL["response.in_progress"])
    shown = json.loads(example.line)
    assert fault({**shown, "previous_response_id": "resp_0"}, {**real, "top_p": None}) is None


def test_the_error_in_the_spec_is_the_real_one():
    """The text that is shown is what its command gets."""
    (frame,) = [e.line for e in CLIENT if e.settings.get("param") == "temperature"]
    with pytest.raises(ProtocolError) as caught:
        parse_command(frame)
    assert json.loads(error_event(caught.value)) in [json.loads(example.line) for example in SERVER]


# Tables


def rows(heading: str) -> list[list[str]]:
    """The rows of the first table under a heading, cell by cell."""
    section = TEXT.split(f"\n{heading}\n", 1)[1]
    section = re.split(r"\n##+ ", section, maxsplit=1)[0]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert table is not None
    lines = table[0].strip().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_code_table():
    """Every code with its status and type; waiting helps for 429 and above."""
    table = {row[0].strip("`"): (int(row[1]), row[2].strip("`"), row[3]) for row in rows("## Errors")}
    assert table == {
        code: (status, kind, "yes" if status >= 429 else "no") for code, (status, kind) in ERROR_CODES.items()
    }


def test_the_limits_table():
    """Every limit with its default."""
    config = Config(engine="echo")
    shown = {row[0].strip("`"): float(row[1]) for row in rows("## Limits")}
    limits = {f"limits.{key}": float(value) for key, value in config.limits}
    assert limits.items() <= shown.items()
    for key, value in shown.items():
        holder, _, name = key.rpartition(".")
        assert float(getattr(getattr(config, holder) if holder else config, name)) == value


def test_the_numbers_in_the_text():
    """Those that stand in no table."""
    config = Config(engine="echo")
    for words in (
        f"the first {SNAPSHOT_ITEMS}, as",
        f"taken over {MAX_TAKEOVERS} times and loses {MAX_ENGINES - 1} engines",
        f"back within {config.store.unavailable_timeout_s:.0f} s",
        f"for\n{config.store.journal_ttl_s} s after its end",
        f"running\nanswers may end for {config.drain_timeout_s:.0f} s",
        f"cancelled after {config.limits.orphan_grace_s:.0f} s",
        f"after every {config.limits.queued_repeat_s:.0f} s of\nsilence",
    ):
        assert " ".join(words.split()) in " ".join(TEXT.split())


def test_the_transition_table():
    """The diagram has exactly the moves of the table."""
    arrows = re.findall(r"^    ([A-Z]+) --> ([A-Z]+)", TEXT, re.MULTILINE)
    assert sorted(arrows) == sorted((state.name, to.name) for state in TRANSITIONS for to in TRANSITIONS[state])


@pytest.mark.parametrize(
    ("heading", "command"),
    [
        ("## Commands", Command),
        ("## response.create", ResponseCreate),
        ("### response.cancel", ResponseCancel),
        ("### response.retrieve", ResponseRetrieve),
        ("### conversation.create", Create),
        ("### conversation.retrieve, conversation.delete", ConversationRetrieve),
        ("### conversation.retrieve, conversation.delete", ConversationDelete),
        ("### conversation.update", ConversationUpdate),
        ("### conversation.list", ConversationList),
        ("### conversation.search", ConversationSearch),
        ("### conversation.items.list", ConversationItemsList),
        ("### conversation.subscribe, conversation.unsubscribe", ConversationSubscribe),
        ("### conversation.subscribe, conversation.unsubscribe", ConversationUnsubscribe),
        ("### session.update", SessionUpdate),
    ],
)
def test_the_field_tables(heading, command):
    """Every field of every command; `messages` is what comes of `input` or `items`."""
    names = {name for row in rows(heading) for name in re.findall(r"`([a-z_]+)`", row[0])}
    fields = set(command.__struct_fields__)
    if command is not Command:
        fields -= {"id", "stream_id"}
    if "messages" in fields:
        fields = fields - {"messages", "plain"} | {"items" if command is Create else "input"}
    if "options" in fields:
        fields = fields - {"options"} | OPTIONS
    assert names == fields


# What `Options` is read from.
OPTIONS = {"text", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "top_logprobs", "include"}


def test_links_lead_somewhere():
    """Every anchor is a heading."""
    headings = re.findall(r"^##+ (.*)$", TEXT, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]*)\)", TEXT)) <= anchors
