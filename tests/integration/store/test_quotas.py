"""Quotas on a real Redis: exact when many ask at once, and over as soon as their time is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from protocol.commands import ConversationCreate, ResponseCreate
from protocol.errors import ProtocolError
from protocol.items import Message
from server.access.auth import User
from server.access.limits import Hold, Limits
from server.config import QuotasConfig

MINUTE_MS, DAY_MS = 60_000, 86_400_000
NOON_MS = 20_000 * DAY_MS + DAY_MS // 2
HI = ResponseCreate(messages=(Message("user", "hi"),))


class Clock:
    """Milliseconds, moved by hand."""

    def __init__(self) -> None:
        self.ms = NOON_MS

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


def limits(store: Any, clock: Clock | None = None, *, tenant: dict[str, int] | None = None, **user: int) -> Limits:
    config = QuotasConfig.model_validate({"user": user, "tenant": tenant or {}})
    return Limits(config, store, clock)


def ann(**own: int) -> User:
    return User("acme/ann", key="k1", limits=tuple(own.items()))


BOB = User("acme/bob")


async def outcomes(*work: Any) -> tuple[list[Hold], list[ProtocolError]]:
    done = await asyncio.gather(*work, return_exceptions=True)
    errors = [one for one in done if isinstance(one, ProtocolError)]
    holds = [one for one in done if isinstance(one, Hold)]
    assert len(errors) + len(holds) == len(done), done
    return holds, errors


async def refused(work: Any) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        await work
    return caught.value


async def test_six_hundred_at_once_on_two_gateways(store, open_store, shared_server, prefix):
    """A key for 100 turns a minute gets 100 through, wherever they arrive."""
    other = await open_store(shared_server.url, key_prefix=prefix)
    gateways = [limits(store), limits(other)]
    user = ann(turns_per_minute=100)
    holds, errors = await outcomes(*(gateways[n % 2].begin_turn(user, f"resp_{n}", HI) for n in range(600)))
    assert len(holds) == 100
    assert {error.code for error in errors} == {"rate_limit_exceeded"}
    assert all(50_000 < (error.retry_after_ms or 0) <= MINUTE_MS for error in errors)


async def test_a_minute_slides(store, clock):
    """The hint is when the oldest turn leaves the last 60 seconds; then exactly one more may come."""
    mine = limits(store, clock, turns_per_minute=3)
    for number in range(3):
        await mine.begin_turn(BOB, f"resp_{number}", HI)
        clock.ms += 10_000
    error = await refused(mine.begin_turn(BOB, "resp_3", HI))
    assert error.retry_after_ms == 30_000
    clock.ms += 29_999
    await refused(mine.begin_turn(BOB, "resp_3", HI))
    clock.ms += 1
    await mine.begin_turn(BOB, "resp_3", HI)
    assert (await refused(mine.begin_turn(BOB, "resp_4", HI))).retry_after_ms == 10_000


async def test_a_limit_that_was_lowered(store, clock):
    """The hint is when there is room under the new one."""
    before, after = limits(store, clock, turns_per_minute=10), limits(store, clock, turns_per_minute=2)
    for number in range(6):
        await before.begin_turn(BOB, f"resp_{number}", HI)
        clock.ms += 1000
    error = await refused(after.begin_turn(BOB, "resp_6", HI))
    clock.ms += error.retry_after_ms or 0
    await after.begin_turn(BOB, "resp_6", HI)


@pytest.mark.parametrize("name", ["input_tokens_per_day", "output_tokens_per_day"])
async def test_a_day(store, clock, name):
    """Tokens count when a turn has ended; when they are used up, the next turn may come at midnight."""
    mine = limits(store, clock, **{str(name): 100})  # type: ignore[arg-type]  # a name of `user`
    for number, tokens in enumerate((60, 60)):
        hold = await mine.begin_turn(BOB, f"resp_{number}", HI)
        await mine.end_turn(hold, tokens, tokens)
        await mine.end_turn(hold, tokens, tokens)  # as after a lost reply
    error = await refused(mine.begin_turn(BOB, "resp_2", HI))
    assert error.code == "rate_limit_exceeded"
    assert error.retry_after_ms == DAY_MS // 2
    assert (await mine.read(BOB))[0]["remaining"] == 0
    clock.ms += DAY_MS // 2 - 1
    await refused(mine.begin_turn(BOB, "resp_2", HI))
    clock.ms += 1
    await mine.begin_turn(BOB, "resp_2", HI)
    assert (await mine.read(BOB))[0] == {
        "scope": "user",
        "name": name,
        "limit": 100,
        "remaining": 100,
        "resets_in_ms": DAY_MS,
    }


async def test_responses_at_once(store):
    """Ended ones and those that never were give their place back; a repetition of a turn takes no second one."""
    mine = limits(store, concurrent_responses=2)
    holds, errors = await outcomes(*(mine.begin_turn(BOB, f"resp_{n}", HI) for n in range(20)))
    assert (len(holds), len(errors)) == (2, 18)
    assert all(error.retry_after_ms for error in errors)
    await mine.begin_turn(BOB, holds[0].thing, HI)
    await mine.end_turn(holds[0], 1, 1)
    await mine.undo_turn(holds[1])
    holds, _ = await outcomes(*(mine.begin_turn(BOB, f"resp_{n}", HI) for n in range(20, 30)))
    assert len(holds) == 2


async def test_what_a_turn_did_not_get_it_does_not_cost(store, clock):
    """Quotas are taken all or none, and given back when the turn never was."""
    mine = limits(store, clock, concurrent_responses=1, turns_per_minute=3)
    first = await mine.begin_turn(BOB, "resp_0", HI)
    for number in range(1, 10):
        await refused(mine.begin_turn(BOB, f"resp_{number}", HI))
    left = {row["name"]: row["remaining"] for row in await mine.read(BOB)}
    assert left == {"concurrent_responses": 0, "turns_per_minute": 2}
    await mine.undo_turn(first)
    left = {row["name"]: row["remaining"] for row in await mine.read(BOB)}
    assert left == {"concurrent_responses": 1, "turns_per_minute": 3}


async def test_a_dead_gateway_holds_no_places(store, clock):
    """They are free when their lease is up, unless they are renewed."""
    mine = limits(store, clock, connections=1)
    await mine.open_connection(BOB, "dead")
    await refused(mine.open_connection(BOB, "new"))
    clock.ms += MINUTE_MS
    place = await mine.open_connection(BOB, "new")
    await mine.close(place)
    await mine.open_connection(BOB, "newer")


async def test_renewing_holds_a_place(store, shared_server, prefix):
    """The clock is Redis's own here: the lease is a whole one again."""
    mine = limits(store, connections=1)
    await mine.open_connection(BOB, "c1")
    name = f"{prefix}:quota:connections:user:acme/bob"
    shared_server.call("ZADD", name, 1, "c1")  # as if its time were up
    await mine.renew()
    await refused(mine.open_connection(BOB, "c2"))


async def test_key_user_and_tenant(store):
    """The first limit that is reached refuses, and says whose it is; others of the tenant share its own."""
    mine = limits(store, turns_per_minute=4, tenant={"turns_per_minute": 6})
    one, other = ann(turns_per_minute=2), User("acme/ann", key="k2")
    stranger = User("other/ann")
    _, (error, *_) = await outcomes(*(mine.begin_turn(one, f"a{n}", HI) for n in range(4)))
    assert "this key may have 2 turns a minute" in error.message
    _, (error, *_) = await outcomes(*(mine.begin_turn(other, f"b{n}", HI) for n in range(4)))
    assert "this user may have 4" in error.message
    _, (error, *_) = await outcomes(*(mine.begin_turn(BOB, f"c{n}", HI) for n in range(4)))
    assert "this tenant may have 6" in error.message
    holds, _ = await outcomes(*(mine.begin_turn(stranger, f"d{n}", HI) for n in range(5)))
    assert len(holds) == 4


async def test_a_tokens_own_limits(store):
    """They stand in the place of those for every user."""
    mine = limits(store, turns_per_minute=1)
    user = User("ann", limits=(("turns_per_minute", 3),))
    holds, _ = await outcomes(*(mine.begin_turn(user, f"resp_{n}", HI) for n in range(9)))
    assert len(holds) == 3


async def test_conversations(store, scene, shared_server, prefix):
    """As many as the limit, when many are made at once; a deleted or expired one makes room."""
    mine = limits(store, conversations=3)

    async def make(name: str, command_id: str | None = None) -> None:
        hold = await mine.check_conversation(BOB, name, ConversationCreate(id=command_id))
        await store.create_conversation(scene.conversation(name, owner=BOB.id), [], command_id)
        await mine.close(hold)

    done = await asyncio.gather(*(make(f"conv_{n}", f"make {n}") for n in range(12)), return_exceptions=True)
    errors = [one for one in done if isinstance(one, ProtocolError)]
    assert len(errors) == 9
    assert {error.code for error in errors} == {"invalid_request"}
    made = [row.id for row in (await store.list_conversations(BOB.id, after=None, limit=100))[0]]
    assert len(made) == 3
    await make("conv_again", f"make {made[0].removeprefix('conv_')}")
    await store.delete_conversation(BOB.id, made[0])
    await make("conv_a")
    await refused(make("conv_b"))
    shared_server.call("DEL", f"{prefix}:conversation:{made[2]}")  # past its retention
    await make("conv_b")


async def test_turns_of_a_conversation(store, scene):
    """A conversation has a length; waiting does not help, so there is no hint."""
    mine = limits(store, conversation_turns=2)
    await store.create_conversation(scene.conversation("c", owner="acme/bob"), [], None)
    turn = ResponseCreate(messages=HI.messages, conversation="c")
    for name in ("r1", "r2"):
        await mine.begin_turn(BOB, name, turn)
        await store.begin(scene.turn(name, owner="acme/bob"))
    error = await refused(mine.begin_turn(BOB, "r3", turn))
    assert (error.code, error.param, error.retry_after_ms) == ("invalid_request", "conversation", None)
    await mine.begin_turn(BOB, "r3", HI)


async def test_turns_of_a_conversation_that_come_at_once(store, scene):
    """As many as there is room for; what was refused since takes no room."""
    mine = limits(store, conversation_turns=2)
    await store.create_conversation(scene.conversation("c", owner="acme/bob"), [], None)
    turn = ResponseCreate(messages=HI.messages, conversation="c")
    holds, errors = await outcomes(*(mine.begin_turn(BOB, f"r{n}", turn) for n in range(10)))
    assert (len(holds), len(errors)) == (2, 8)
    await mine.end_turn(holds[0], 0, 0)
    (hold,), _ = await outcomes(*(mine.begin_turn(BOB, f"s{n}", turn) for n in range(10)))
    for begun in (holds[1], hold):
        await store.begin(scene.turn(begun.thing, owner="acme/bob"))
        await mine.end_turn(begun, 1, 1)
    await refused(mine.begin_turn(BOB, "t", turn))


async def test_a_place_that_is_given_back_while_it_is_renewed(store, shared_server, prefix):
    """Is free: the two commands may come to Redis in either order."""
    mine = limits(store, connections=1)
    place = await mine.open_connection(BOB, "c1")
    renew = store.renew_quotas

    async def late(held: Any, lease_ms: int) -> None:
        await mine.close(place)
        await renew(held, lease_ms)

    store.renew_quotas = late
    await mine.renew()
    await mine.open_connection(BOB, "c2")


async def test_what_was_begun_before_holds_nothing(store, scene):
    """A repeated turn or conversation, or one that could not be made, is not remembered for ever."""
    mine = limits(store, concurrent_responses=5, conversations=5)
    await store.begin(scene.turn("r1", owner="acme/bob", conversation=None, command_id="again"))
    await mine.begin_turn(BOB, "r2", ResponseCreate(id="again", messages=HI.messages))
    mine.forget(await mine.check_conversation(BOB, "conv_1", ConversationCreate()))
    assert mine._held == set()


async def test_the_size_of_a_turn(store):
    """Characters of all that is sent, instructions too."""
    mine = limits(store, input_chars=10)
    await mine.begin_turn(BOB, "r", ResponseCreate(messages=(Message("user", "x" * 10),)))
    for command in (
        ResponseCreate(messages=(Message("user", "x" * 6), Message("user", "x" * 5))),
        ResponseCreate(messages=(Message("user", "x" * 6),), instructions="x" * 5),
    ):
        error = await refused(mine.begin_turn(BOB, "r", command))
        assert (error.code, error.param) == ("invalid_request", "input")
        assert "has 11 characters" in error.message


async def test_without_limits_nothing_is_asked(store):
    """A server without quotas costs no round trip, and a user without a store neither."""
    free = limits(None)
    hold = await free.begin_turn(BOB, "r", HI)
    await free.end_turn(hold, 1, 1)
    assert await free.read(BOB) == []
