"""Tokens that wait before vLLM's output processor: joined, never lost, never out of order."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from server.engine.base import Chunk
from server.engine.vllm_outputs import Bypass, Gathering


def output(*token_ids: int, request: str = "r", **fields: Any) -> Any:
    names = ("finish_reason", "prefill_stats", "new_logprobs", "kv_transfer_params", "routed_experts")
    empty = dict.fromkeys((*names, "new_sampling_mask"))
    return SimpleNamespace(request_id=request, new_token_ids=list(token_ids), **(empty | fields))


class Waiting:
    """A sink that is asked by the test."""

    def __init__(self) -> None:
        self.hand_over: Callable[[], None] | None = None
        self.chunks: list[tuple[str, int]] = []
        self.calls: list[str] = []

    def receive(self, chunk: Chunk) -> None:
        self.chunks.append((chunk.text, chunk.token_count))

    def wait(self, hand_over: Callable[[], None]) -> None:
        self.hand_over = hand_over
        self.calls.append("wait")

    def heard(self) -> None:
        self.calls.append("heard")


class Detokenizer:
    """Makes "<2><3>" of tokens 2 and 3, and raises where it meets 13."""

    def __init__(self) -> None:
        self._text = ""

    def update(self, token_ids: list[int], _stops: bool) -> None:
        if 13 in token_ids:
            raise ValueError("no such token")
        self._text += "".join(f"<{index}>" for index in token_ids)

    def get_next_output_text(self, _finished: bool, _delta: bool) -> str:
        text, self._text = self._text, ""
        return text


class World:
    """A processor that notes what it is given: (request, token ids)."""

    def __init__(self) -> None:
        self.processed: list[tuple[str, list[int]]] = []
        self.versions: list[str | None] = []
        self.put: list[Any] = []
        self.state = SimpleNamespace(stream_interval=1, detokenizer=Detokenizer())
        self.processor: Any = SimpleNamespace(process_outputs=self._process, request_states={"r": self.state})
        self.gathering = Gathering(self.processor)
        self.sink = Waiting()
        self.queue: Any = SimpleNamespace(output=None, put=self.put.append)
        self.gathering.begin("r", self.sink, Bypass(self.queue, self.sink, None))

    def _process(self, outputs: list[Any], *_: Any, weight_version: str | None = None) -> None:
        self.processed += [(output.request_id, output.new_token_ids) for output in outputs]
        self.versions.append(weight_version)

    def come(self, *outputs: Any) -> None:
        self.processor.process_outputs(list(outputs), 1.0, None, weight_version="v")

    def ask(self) -> None:
        assert self.sink.hand_over is not None
        self.sink.hand_over()


@pytest.fixture
def world() -> World:
    world = World()
    world.come(output(1))
    return world


def test_the_first_token_goes_on_at_once(world: World) -> None:
    assert world.processed == [("r", [1])]
    assert world.sink.calls == []


def test_what_follows_waits_until_it_is_asked_for(world: World) -> None:
    world.come(output(2))
    world.come(output(3, 4))
    assert world.processed == [("r", [1])]
    assert world.sink.calls == ["wait", "heard"]
    world.ask()
    world.ask()  # nothing waits: nothing happens
    assert world.processed == [("r", [1])]
    assert world.sink.chunks == [("<2><3><4>", 3)]
    world.come(output(5))
    assert world.sink.calls == ["wait", "heard", "wait"]


@pytest.mark.parametrize("fields", [{"finish_reason": "stop"}, {"new_logprobs": ()}, {"kv_transfer_params": {}}])
def test_an_end_and_whatever_is_more_than_tokens_takes_along_what_waits(world: World, fields: dict[str, Any]) -> None:
    world.come(output(2))
    world.come(output(3, **fields))
    assert world.processed == [("r", [1]), ("r", [2, 3])]
    world.ask()
    assert len(world.processed) == 2


@pytest.mark.parametrize("reason", ["something waits before it", "vLLM counts", "it is gone"])
def test_vllm_itself_works_on_what_is_more_than_text(world: World, reason: str) -> None:
    world.come(output(2))
    match reason:
        case "something waits before it":
            world.queue.output = "not taken yet"
        case "vLLM counts":
            world.state.stream_interval = 2
        case _:
            world.processor.request_states.clear()
    world.ask()
    assert world.processed == [("r", [1]), ("r", [2])]
    assert world.versions[-1] == "v"
    assert world.sink.chunks == []


def test_other_requests_wait_for_nobody(world: World) -> None:
    world.come(output(2), output(7, request="other"))
    assert world.processed[1:] == [("other", [7])]


def test_a_request_that_leaves_gets_what_waits(world: World) -> None:
    world.come(output(2))
    world.gathering.end("r")
    world.gathering.end("r")
    assert world.sink.chunks == [("<2>", 1)]
    world.come(output(3))
    assert world.processed[-1] == ("r", [3])


def test_a_fault_in_the_making_of_text_ends_this_request_and_reaches_nobody_else(world: World) -> None:
    world.come(output(13))
    world.ask()
    assert [str(error) for error in world.put] == ["no such token"]
