"""Lanes, and what one connection may have in flight."""

from __future__ import annotations

from typing import Any

from tests.integration.server.wire import DELTA, TERMINAL, client
from tests.support.server import ServerProcess

LONG = " ".join(f"w{number}" for number in range(60))


async def test_turns_of_a_lane_are_answered_in_order(slow: ServerProcess):
    """First in, first out; the next is not begun before the one before it has ended."""
    async with client(slow) as c:
        for number in range(3):
            await c.create(f"number {number}", stream_id="a")
        answers = [await c.answer("a") for _ in range(3)]
    assert [answer.text for answer in answers] == ["number 0", "number 1", "number 2"]


async def test_lanes_run_side_by_side(slow: ServerProcess):
    """A short answer overtakes a long one of another lane; stream_id comes back only where it was sent."""
    async with client(slow) as c:
        await c.create(LONG, stream_id="long")
        await c.create("short", stream_id="short")
        await c.create("bare")
        order: list[str | None] = []
        seen = set()
        while len(order) < 3:
            event = await c.event()
            seen.add(event.get("stream_id", "absent"))
            if event["type"] in TERMINAL:
                order.append(event.get("stream_id"))
    assert order[-1] == "long"
    assert seen == {"long", "short", "absent"}


async def test_sixteen_in_flight_and_no_more(slow: ServerProcess):
    """The 17th busy lane is refused with a retry hint; one of the 16 may still queue behind itself."""
    async with client(slow) as c:
        for lane in range(16):
            await c.create(LONG, stream_id=f"l{lane}")
        error = await c.refused("response.create", input="x", stream_id="one-more")
        assert error["code"] == "rate_limit_exceeded"
        assert error["retry_after_ms"] > 0
        await c.create("behind", stream_id="l0")
        await c.send("response.cancel", stream_id="l0")
        assert (await c.answer("l0")).type == "response.incomplete"
        assert (await c.answer("l0")).text == "behind"
        for lane in range(1, 16):
            await c.send("response.cancel", stream_id=f"l{lane}")
            await c.answer(f"l{lane}")


async def test_thirty_two_names_and_no_more(server: ServerProcess):
    """The 33rd stream_id is refused; the lane without a name does not count."""
    async with client(server) as c:
        for lane in range(32):
            await c.ask("x", stream_id=f"l{lane}")
        error = await c.refused("response.create", input="x", stream_id="l32")
        assert (error["code"], error["param"]) == ("invalid_request", "stream_id")
        assert (await c.ask("still")).text == "still"
        assert (await c.ask("still", stream_id="l31")).text == "still"


async def test_a_lane_queues_sixteen_turns(slow: ServerProcess):
    """The 17th behind a running one is refused; the others are all answered."""
    async with client(slow) as c:
        await c.begin(LONG, stream_id="a")
        for number in range(16):
            await c.create(f"n{number}", stream_id="a")
        await c.create("too much", stream_id="a", id="over")
        await c.send("response.cancel", stream_id="a")
        events: list[dict[str, Any]] = []
        texts: list[str] = []
        refused: list[tuple[str, str]] = []
        while len(texts) < 17:
            event = await c.lane_event("a")
            if event["type"] == "error":
                refused.append((event["id"], event["error"]["code"]))
                continue
            events.append(event)
            if event["type"] in TERMINAL:
                texts.append("".join(e["delta"] for e in events if e["type"] == DELTA))
                events.clear()
    assert refused == [("over", "rate_limit_exceeded")]
    assert texts[1:] == [f"n{number}" for number in range(16)]


async def test_a_cancel_in_the_same_packet_as_its_turn_counts(slow: ServerProcess):
    """Turn and cancel that arrive together: the turn is cancelled, in every lane and every time."""
    async with client(slow) as c:
        for attempt in range(10):
            lane = None if attempt % 2 else f"l{attempt}"
            fields = {} if lane is None else {"stream_id": lane}
            c.write_together({"input": LONG, **fields}, {"type": "response.cancel", **fields})
            answer = await c.answer(lane)
            assert answer.type == "response.incomplete"
            assert answer.response["incomplete_details"] == {"reason": "cancelled"}
        assert (await c.ask("next")).text == "next"
