"""Tokens that wait before vLLM's output processor: joined, never lost, never out of order."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from server.engine.base import Chunk
from server.engine.vllm_outputs import Gathering


def output(*token_ids: int, request: str = "r", **fields: Any) -> Any:
    names = ("finish_reason", "prefill_stats", "new_logprobs", "kv_transfer_params", "routed_experts")
    empty = dict.fromkeys((*names, "new_sampling_mask"))
    return SimpleNamespace(request_id=request, new_token_ids=list(token_ids), **(empty | fields))


class Waiting:
    """A sink that is asked by the test."""

    def __init__(self) -> None:
        self.hand_over: Callable[[], None] | None = None
        self.calls: list[str] = []

    def receive(self, chunk: Chunk) -> None:
        raise AssertionError("the processor of these tests makes no chunks")

    def wait(self, hand_over: Callable[[], None]) -> None:
        self.hand_over = hand_over
        self.calls.append("wait")

    def heard(self) -> None:
        self.calls.append("heard")


class World:
    """A processor that notes what it is given: (request, token ids)."""

    def __init__(self) -> None:
        self.processed: list[tuple[str, list[int]]] = []
        self.versions: list[str | None] = []
        self.fault: Exception | None = None
        self.failed: list[Exception] = []
        self.processor: Any = SimpleNamespace(process_outputs=self._process)
        self.gathering = Gathering(self.processor)
        self.sink = Waiting()
        self.gathering.begin("r", self.sink, self.failed.append)

    def _process(self, outputs: list[Any], *_: Any, weight_version: str | None = None) -> None:
        if self.fault is not None:
            raise self.fault
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
    assert world.processed == [("r", [1]), ("r", [2, 3, 4])]
    assert world.versions[-1] == "v"
    world.come(output(5))
    assert world.sink.calls == ["wait", "heard", "wait"]


@pytest.mark.parametrize("fields", [{"finish_reason": "stop"}, {"new_logprobs": ()}, {"kv_transfer_params": {}}])
def test_an_end_and_whatever_is_more_than_tokens_takes_along_what_waits(world: World, fields: dict[str, Any]) -> None:
    world.come(output(2))
    world.come(output(3, **fields))
    assert world.processed == [("r", [1]), ("r", [2, 3])]
    world.ask()
    assert len(world.processed) == 2


def test_other_requests_wait_for_nobody(world: World) -> None:
    world.come(output(2), output(7, request="other"))
    assert world.processed[1:] == [("other", [7])]


def test_a_request_that_leaves_gets_what_waits(world: World) -> None:
    world.come(output(2))
    world.gathering.end("r")
    world.gathering.end("r")
    assert world.processed == [("r", [1]), ("r", [2])]
    world.come(output(3))
    assert world.processed[-1] == ("r", [3])


def test_a_fault_in_the_making_of_text_ends_this_request_and_reaches_nobody_else(world: World) -> None:
    world.come(output(2))
    world.fault = ValueError("no such token")
    world.ask()
    assert world.failed == [world.fault]
