"""What becomes of a turn's quotas, however the turn ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from protocol.errors import ProtocolError
from server.access.access import Access
from server.access.limits import Limits
from server.access.sign_in import SignIn
from server.config import Config, QuotasConfig
from server.store.base import StoreUnavailableError
from tests.support.memory import MemoryStore, until

LIMITS = {"turns_per_minute": 5, "concurrent_responses": 5, "output_tokens_per_day": 100}


class Counted:
    """A quota store that notes what it is asked. ended: kinds given back or spent, with the amounts."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.ended: list[tuple[str, dict[str, int | None]]] = []
        self.is_away = False

    async def take_quotas(self, thing: str, quotas: Sequence[Any], now_ms: int | None, command: Any) -> tuple[int, int]:
        self.taken.append(thing)
        return 0, 0

    async def end_quotas(self, thing: str, quotas: Sequence[Any], now_ms: int | None) -> None:
        if self.is_away:
            raise StoreUnavailableError("away")
        self.ended.append((thing, {quota["key"].split(":")[0]: quota.get("amount") for quota in quotas}))

    async def renew_quotas(self, held: Sequence[Any], lease_ms: int) -> None: ...

    async def read_quotas(self, quotas: Sequence[Any], now_ms: int | None) -> list[tuple[int, int]]:
        return []


@pytest.fixture
def counted() -> Counted:
    return Counted()


def limit(gateway: Any, counted: Counted) -> None:
    config = QuotasConfig.model_validate({"user": LIMITS})
    gateway.runtime.access = Access(SignIn(Config(engine="echo")), Limits(config, counted))


async def end_of(counted: Counted, count: int = 1) -> dict[str, int | None]:
    await until(lambda: len(counted.ended) >= count)
    return counted.ended[count - 1][1]


async def test_an_answer_spends_its_tokens(a, counted):
    """Its place is given back; that it was a turn stays."""
    limit(a, counted)
    generation = await a.create()
    a.engine.say("Hello")
    a.engine.end()
    spent = await end_of(counted)
    assert spent == {"concurrent_responses": 0, "output_tokens_per_day": generation.usage.output_tokens}
    assert generation.usage.output_tokens > 0


async def test_a_turn_that_is_refused_for_what_it_holds_counts(a, counted):
    """As a turn, without tokens: else refusals would cost nothing."""
    limit(a, counted)
    a.engine.context_length = 10
    with pytest.raises(ProtocolError, match="tokens"):
        await a.create(input="x" * 100)
    assert await end_of(counted) == {"concurrent_responses": 0, "output_tokens_per_day": 0}


async def test_a_turn_that_is_refused_for_a_fault_of_ours_never_was(a, counted, store: MemoryStore):
    """Everything is given back."""
    limit(a, counted)
    store.is_away = True
    with pytest.raises(ProtocolError, match="does not answer"):
        await a.create()
    store.is_away = False
    assert await end_of(counted) == {"turns_per_minute": None, "concurrent_responses": None}


async def test_an_end_that_redis_does_not_take_is_written_later(a, counted):
    """When it is back."""
    limit(a, counted)
    await a.create()
    counted.is_away = True
    a.engine.end()
    await a.client.until("response.completed")
    counted.is_away = False
    assert "output_tokens_per_day" in await end_of(counted)


async def test_an_answer_that_is_taken_over(a, b, counted):
    """Its tokens are written down once, by whoever ends it."""
    limit(a, counted)
    limit(b, counted)
    generation = await a.create()
    a.engine.say("Hello")
    await a.client.until("response.output_text.delta")
    await a.die()
    assert await end_of(counted) == {"concurrent_responses": None}
    await b.takeover.adopt_orphans()
    b.engine.say(" world")
    b.engine.end()
    spent = await end_of(counted, 2)
    assert counted.ended[1][0] == generation.response_id
    assert set(spent) == {"input_tokens_per_day", "output_tokens_per_day"}
    assert (spent["output_tokens_per_day"] or 0) > 0
