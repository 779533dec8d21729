"""Every command and every GET route by nobody, the wrong user, another tenant's, the right user, an admin."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from protocol import commands
from server.access.keys import Keys
from tests.integration.server.conftest import run_checked
from tests.integration.server.wire import TERMINAL, Client, client
from tests.support.keyed import bearer, in_store, make_key
from tests.support.server import ServerProcess

CONFIG = """
[auth]
methods = ["keys"]
[models.echo]
source = "echo"
[models.big]
source = "echo"
requires = "big-models"
"""
USERS = {
    "nobody": None,
    "wrong user": ("bob", "acme", ("big-models", "instructions")),
    "other tenant": ("ann", "other", ("big-models", "instructions")),
    "right user": ("ann", "acme", ("big-models", "instructions")),
    "bare user": ("cid", "acme", ()),  # has no right at all
    "admin": ("root", "acme", ("admin",)),
}
SIGNED_IN = set(USERS) - {"nobody"}
OWNER = {"right user"}
GRANTED = SIGNED_IN - {"bare user"}
ADMINS = {"admin"}


@dataclass(frozen=True)
class Row:
    """A command, and for whom it works. For everybody else its ids look as if they never were, or a right is missing.

    CONV and RESP stand for a conversation of ann's and a response in it. missing: the code of that. anyhow: the code
    that those hear whom it works for, as the row's model is not there.
    """

    command: dict[str, Any]
    works_for: set[str]
    missing: str = "permission_denied"
    anyhow: str | None = None


CONV, RESP = "conv_of_ann", "resp_of_ann"
ROWS = {
    "a turn": Row({"type": "response.create", "input": "hi"}, SIGNED_IN),
    "a turn of a conversation": Row(
        {"type": "response.create", "input": "hi", "conversation": CONV}, OWNER, "conversation_not_found"
    ),
    "a turn that follows": Row(
        {"type": "response.create", "input": "hi", "previous_response_id": RESP}, OWNER, "previous_response_not_found"
    ),
    "a turn with instructions": Row({"type": "response.create", "input": "hi", "instructions": "be kind"}, GRANTED),
    "a turn with a system item": Row(
        {"type": "response.create", "input": [{"role": "system", "content": "x"}, {"role": "user", "content": "hi"}]},
        GRANTED,
    ),
    "a turn with a grammar": Row(
        {
            "type": "response.create",
            "input": "hi",
            "text": {"format": {"type": "tokenwire:grammar", "grammar": 'root ::= "a"'}},
        },
        ADMINS,
        anyhow="invalid_request",  # the echo engine keeps to no form
    ),
    "a turn with a model of a right": Row(
        {"type": "response.create", "input": "hi", "model": "big"}, GRANTED, "model_not_found"
    ),
    "cancel": Row({"type": "response.cancel", "response_id": RESP}, OWNER, "response_not_found"),
    "retrieve": Row({"type": "response.retrieve", "response_id": RESP}, OWNER, "response_not_found"),
    "steer": Row({"type": "response.steer"}, SIGNED_IN),
    "processed": Row({"type": "response.processed"}, SIGNED_IN),
    "create": Row({"type": "conversation.create"}, SIGNED_IN),
    "create with a system item": Row(
        {"type": "conversation.create", "items": [{"role": "developer", "content": "x"}]}, GRANTED
    ),
    "conversation": Row({"type": "conversation.retrieve", "conversation": CONV}, OWNER, "conversation_not_found"),
    "update": Row(
        {"type": "conversation.update", "conversation": CONV, "metadata": {"a": "b"}}, OWNER, "conversation_not_found"
    ),
    "delete": Row({"type": "conversation.delete", "conversation": CONV}, OWNER, "conversation_not_found"),
    "subscribe": Row({"type": "conversation.subscribe", "conversation": CONV}, OWNER, "conversation_not_found"),
    # Harmless for an id that is not there, so for a stranger's, too.
    "unsubscribe": Row({"type": "conversation.unsubscribe", "conversation": CONV}, SIGNED_IN),
    "list": Row({"type": "conversation.list"}, SIGNED_IN),
    "search": Row({"type": "conversation.search", "query": "secret"}, SIGNED_IN),
    "items": Row({"type": "conversation.items.list", "conversation": CONV}, OWNER, "conversation_not_found"),
    "models": Row({"type": "model.list"}, SIGNED_IN),
    "add a model": Row({"type": "model.add", "model": "extra", "settings": {"source": "x", "min_replicas": 0}}, ADMINS),
    "load": Row({"type": "model.load", "model": "none"}, ADMINS, anyhow="model_not_found"),
    "unload": Row({"type": "model.unload", "model": "none"}, ADMINS, anyhow="model_not_found"),
    "pin": Row({"type": "model.pin", "model": "none", "pinned": True}, ADMINS, anyhow="model_not_found"),
    "remove": Row({"type": "model.remove", "model": "none"}, ADMINS, anyhow="model_not_found"),
    "alias": Row({"type": "model.alias", "model": "none", "alias": "other"}, ADMINS, anyhow="model_not_found"),
    "embed": Row({"type": "embedding.create", "model": "none", "input": "x"}, SIGNED_IN, anyhow="model_not_found"),
    "rerank": Row(
        {"type": "rerank.create", "model": "none", "query": "x", "documents": ["x"]},
        SIGNED_IN,
        anyhow="model_not_found",
    ),
    "classify": Row({"type": "classify.create", "model": "none", "input": "x"}, SIGNED_IN, anyhow="model_not_found"),
    "limits": Row({"type": "limits.retrieve"}, SIGNED_IN),
    "session": Row({"type": "session.update"}, SIGNED_IN),
}


@dataclass
class World:
    """The server, the users' keys, and what is ann's."""

    server: ServerProcess
    keys: dict[str, str]

    @asynccontextmanager
    async def as_user(self, who: str) -> AsyncIterator[Client]:
        headers = bearer(self.keys[who]) if who in self.keys else {}
        async with client(self.server, additional_headers=headers) as made:
            yield made

    async def make(self) -> tuple[str, str]:
        """Return a new conversation of ann's with an answered response."""
        async with self.as_user("right user") as c:
            conversation = await c.conversation()
            return conversation, (await c.ask("secret", conversation=conversation)).id


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = ServerProcess(tmp_path_factory.mktemp("table"), "--echo-rate", "2000", config=CONFIG).start()

    async def keys() -> dict[str, str]:
        made.key = await make_key(made.data_dir, "prometheus", "metrics")
        found = {}
        for who, account in USERS.items():
            if account is not None:
                user, tenant, rights = account
                found[who] = await make_key(made.data_dir, user, *rights, tenant=tenant)
        return found

    for server in run_checked(made):
        yield World(server, asyncio.run(keys()))


async def outcome(c: Client, command: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all that answers a command."""
    await c.send(command)
    if command["type"] == "response.processed":
        await c.send({"type": "model.list"})  # what is silent is answered by what comes next
    event = await c.event()
    if event["type"] != "response.created":
        return [event]
    return [event, *await c.until(*TERMINAL)]


def filled(command: dict[str, Any], conversation: str, response: str) -> dict[str, Any]:
    text = json.dumps(command).replace(CONV, conversation).replace(RESP, response)
    return dict(json.loads(text))


def code_of(events: list[dict[str, Any]]) -> str | None:
    return next((event["error"]["code"] for event in events if event["type"] == "error"), None)


def test_every_command_is_in_the_table():
    """A new command needs a row: who may it be for?"""
    known = {kind.TYPE for kind in vars(commands).values() if isinstance(kind, type) and hasattr(kind, "TYPE")}
    assert {row.command["type"] for row in ROWS.values()} == known


@pytest.mark.parametrize("who", USERS)
@pytest.mark.parametrize("name", ROWS)
async def test_commands(world: World, name: str, who: str):
    """Each works for those it is for. Strangers hear word for word what they hear of an id that never was."""
    row = ROWS[name]
    conversation, response = await world.make()
    async with world.as_user(who) as c:
        events = await outcome(c, filled(row.command, conversation, response))
        if who == "nobody":
            assert code_of(events) == "unauthorized"
            await c.until_closed()
            assert c.websocket.close_code == 4401
        elif who in row.works_for:
            assert code_of(events) == row.anyhow, events
        else:
            assert code_of(events) == row.missing
            made_up = await outcome(c, filled(row.command, "conv_never", "resp_never"))
            as_if = json.dumps(made_up).replace("conv_never", conversation).replace("resp_never", response)
            assert json.loads(as_if) == events
        assert "secret" not in json.dumps(events) or who == "right user"
    async with world.as_user("right user") as c:  # nobody else has changed or removed anything of ann's
        if name != "delete" or who != "right user":
            assert (await c.items(conversation))[:2] == [("user", "secret"), ("assistant", "secret")]


ROUTES = {
    "/v1/models": (SIGNED_IN, 401),
    "/v1/limits": (SIGNED_IN, 401),
    "/v1/responses/RESP": (OWNER, 404),
    "/v1/conversations": (SIGNED_IN, 401),
    "/v1/conversations/CONV": (OWNER, 404),
    "/v1/conversations/CONV/items": (OWNER, 404),
    "/metrics": (ADMINS, 403),
    "/": (set(USERS), 200),
    "/healthz": (set(USERS), 200),
    "/readyz": (set(USERS), 200),
}


async def test_routes(world: World):
    """The GET routes say what the commands say."""
    conversation, response = await world.make()
    for route, (works_for, refused) in ROUTES.items():
        path = route.replace("CONV", conversation).replace("RESP", response)
        for who in USERS:
            status, body = await asyncio.to_thread(world.server.get, path, world.keys.get(who, ""))
            expected = 200 if who in works_for else 401 if who == "nobody" else refused
            assert (route, who, status) == (route, who, expected)
            assert "secret" not in json.dumps(body) or who == "right user"


async def test_lists_hold_ones_own(world: World):
    """Conversations are the account's, models those that its rights show."""
    conversation, _ = await world.make()
    for who in sorted(SIGNED_IN):
        async with world.as_user(who) as c:
            listed = [row["id"] for row in (await c.do("conversation.list", limit=1000))["data"]]
            assert (conversation in listed) == (who == "right user")
            found = [row["conversation"]["id"] for row in (await c.do("conversation.search", query="secret"))["data"]]
            assert (conversation in found) == (who == "right user")
            models = [row["id"] for row in (await c.do("model.list"))["data"]]
            assert set(models) - {"extra"} == ({"echo"} if who == "bare user" else {"echo", "big"})


async def test_a_running_response_is_nobody_elses(world: World):
    """Nor can another cancel it, or hear it, while it runs; nor repeat its command by its id."""
    async with world.as_user("right user") as ann, world.as_user("wrong user") as bob:
        await ann.create("word " * 5000, id="turn")
        response = (await ann.event())["response"]["id"]
        assert (await bob.refused("response.cancel", response_id=response))["code"] == "response_not_found"
        assert (await bob.refused("response.retrieve", response_id=response))["code"] == "response_not_found"
        mine = await bob.ask("hi", id="turn")
        assert mine.id != response
        await ann.send("response.cancel", response_id=response)
        await ann.until(*TERMINAL)


async def test_two_keys_are_one_account(world: World):
    """A second key of ann's sees what the first one made."""
    conversation, _ = await world.make()
    second = await make_key(world.server.data_dir, "ann", tenant="acme")
    async with client(world.server, additional_headers=bearer(second)) as c:
        assert len(await c.items(conversation)) == 2
    listed = await in_store(world.server.data_dir, lambda store: Keys(store).list())
    assert {state.user.id for state in listed} >= {"acme/ann", "other/ann", "acme/bob", "acme/root"}
