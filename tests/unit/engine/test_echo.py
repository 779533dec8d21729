"""What the echo engine does besides the contract, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.items import Message
from server.engine.base import (
    EngineDeadError,
    EngineStartError,
    FinishReason,
    GenerationRequest,
    Prompt,
    Sampling,
)
from server.engine.echo import BURST_WORDS, EchoEngine
from tests.unit.engine.contract import ask, begin, text_of, user


class FakeClock:
    """Time that stands still until `advance`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> None:
        heapq.heappush(self._timers, (when, next(self._numbers), lambda: callback(*args)))

    @property
    def timers(self) -> int:
        return len(self._timers)

    async def advance(self, seconds: float) -> None:
        self.now += seconds
        while self._timers and self._timers[0][0] <= self.now + 1e-9:
            heapq.heappop(self._timers)[2]()
        for _ in range(5):
            await asyncio.sleep(0)


@given(st.text(max_size=200))
def test_the_answer_is_the_message(text: str) -> None:
    """Whatever the message is made of, its words joined are the message."""
    engine = EchoEngine("echo", rate=0, ttft_ms=0)
    chunks = asyncio.run(ask(engine, user(text), Sampling(1000)))
    assert text_of(chunks) == text
    assert chunks[-1].finish_reason is FinishReason.STOP


@given(st.text("ab ", max_size=60), st.lists(st.text("ab ", min_size=1, max_size=5), max_size=3))
def test_no_stop_string_is_ever_shown(text: str, stop: list[str]) -> None:
    """The answer ends with the word that completes a stop string, and shows nothing of it."""
    engine = EchoEngine("echo", rate=0, ttft_ms=0)
    chunks = asyncio.run(ask(engine, user(text), Sampling(1000, stop=tuple(stop))))

    async def after_each_word() -> list[str]:
        return [text_of(await ask(engine, user(text), Sampling(count))) for count in range(1, len(text) + 1)]

    expected = text
    for said in asyncio.run(after_each_word()):  # not chunk by chunk: one may hold many words
        if found := [said.index(each) for each in stop if each in said]:
            expected = said[: min(found)]
            break
    assert text_of(chunks) == expected


async def test_it_answers_the_last_user_message() -> None:
    """History and instructions are not repeated; without any user message the answer is empty."""
    engine = EchoEngine("echo", rate=0, ttft_ms=0)
    turns = [Message("system", "be kind"), *user("first"), Message("assistant", "x"), *user("second one")]
    assert text_of(await ask(engine, turns, Sampling(9))) == "second one"
    assert text_of(await ask(engine, turns[:1], Sampling(9))) == ""


async def test_words_come_at_the_rate_after_the_first() -> None:
    """The first word comes after `ttft_ms`, then `rate` words a second, each when it is due."""
    clock = FakeClock()
    engine = EchoEngine("echo", rate=10, ttft_ms=200, clock=clock)
    prompt = await engine.render(user("a b c"))
    chunks = engine.generate(GenerationRequest("1", prompt, Sampling(9)))
    first = asyncio.create_task(anext(chunks))
    await clock.advance(0)
    await clock.advance(0.19)
    assert not first.done()
    await clock.advance(0.01)
    assert (await first).text == "a "
    second = asyncio.create_task(anext(chunks))
    await clock.advance(0)
    await clock.advance(0.1)
    assert (await second).text == "b "
    await chunks.aclose()


async def test_a_late_reader_gets_all_that_is_due_at_once() -> None:
    """Words are counted by the clock, not by timers."""
    clock = FakeClock()
    engine = EchoEngine("echo", rate=10, ttft_ms=0, clock=clock)
    chunks, first = await begin(engine, user("a b c d e f"), Sampling(9))
    await clock.advance(0.35)
    late = await anext(chunks)
    assert (first.text, late.text, late.token_count) == ("a ", "b c d ", 3)
    await chunks.aclose()


async def test_streams_share_their_timers() -> None:
    """A hundred streams of one pace need one timer, not a hundred."""
    clock = FakeClock()
    engine = EchoEngine("echo", rate=10, ttft_ms=50, clock=clock)
    tasks = [asyncio.create_task(ask(engine, user("a b"), Sampling(9))) for _ in range(100)]
    await clock.advance(0)
    assert clock.timers == 1
    await clock.advance(0.05)
    await clock.advance(0.1)
    assert {text_of(chunks) for chunks in await asyncio.gather(*tasks)} == {"a b"}


async def test_at_rate_0_others_get_their_turn() -> None:
    """A stream as fast as asked gives a word, then many each time, and lets the loop run in between."""
    engine = EchoEngine("echo", rate=0, ttft_ms=0)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count())
    chunks = await ask(engine, user("word " * (1 + 2 * BURST_WORDS + 3)), Sampling(999))
    counter.cancel()
    assert [chunk.token_count for chunk in chunks] == [1, BURST_WORDS, BURST_WORDS, 3]
    assert turns >= 4


async def test_more_than_max_concurrency_wait_in_order() -> None:
    """Who came first is served first, and waiting requests count as unfinished."""
    engine = EchoEngine("echo", rate=0, ttft_ms=0, max_concurrency=1)
    running, _ = await begin(engine, user("a b c"), Sampling(9))
    order: list[str] = []

    async def wait(text: str) -> None:
        await ask(engine, user(text), Sampling(9))
        order.append(text)

    waiting = [asyncio.create_task(wait(text)) for text in ("first", "second", "third")]
    await asyncio.sleep(0)
    assert engine.unfinished == 4
    await running.aclose()
    await asyncio.gather(*waiting)
    assert order == ["first", "second", "third"]


async def test_ignore_eos_says_it_again() -> None:
    """The message is repeated until `max_tokens`; one without words still ends."""
    engine = EchoEngine("echo", rate=0, ttft_ms=0)
    assert text_of(await ask(engine, user("a b"), Sampling(5, ignore_eos=True))) == "a ba ba "
    assert (await ask(engine, user(""), Sampling(5, ignore_eos=True)))[-1].finish_reason is FinishReason.STOP
    assert text_of(await ask(engine, user("a "), Sampling(5, min_tokens=3))) == "a a a "


async def test_close_ends_running_and_waiting_requests() -> None:
    """Each gets EngineDeadError; nothing more can be asked; closing again is harmless."""
    clock = FakeClock()
    engine = EchoEngine("echo", rate=1, ttft_ms=1000, max_concurrency=1, clock=clock)
    tasks = [asyncio.create_task(ask(engine, user("a b"), Sampling(9))) for _ in range(2)]
    await asyncio.sleep(0)
    engine.close()
    engine.close()
    for task in tasks:
        with pytest.raises(EngineDeadError, match="engine echo was closed"):
            await task
    assert engine.unfinished == 0
    for call in (engine.check_health(), engine.render(user("a"))):
        with pytest.raises(EngineDeadError):
            await call
    with pytest.raises(EngineDeadError):
        async with aclosing(engine.generate(GenerationRequest("1", Prompt((), 0), Sampling(1)))) as chunks:
            await anext(chunks)
    await engine.wait_closed()


async def test_start_is_immediate() -> None:
    """There is nothing to load."""
    said: list[tuple[str, float | None]] = []
    await EchoEngine("echo", rate=0, ttft_ms=0).start(lambda words, share: said.append((words, share)))
    assert said == [("there is nothing to load", None)]


@pytest.mark.parametrize(("rate", "ttft"), [(-1, 0), (0, -1)])
def test_negative_numbers_are_refused(rate: float, ttft: float) -> None:
    """A broken setting is told at once."""
    with pytest.raises(EngineStartError, match="0 or more"):
        EchoEngine("echo", rate=rate, ttft_ms=ttft)


async def test_long_text_is_split_in_a_thread() -> None:
    """A prompt of any length is rendered alike."""
    engine = EchoEngine("echo", rate=0, ttft_ms=0)
    assert (await engine.render(user("word " * 10_000))).token_count == 10_000
