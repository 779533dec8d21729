"""What every engine does, as tests: a subclass brings the fixture `engine` and, where it must, other messages."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from protocol.items import Message
from server.engine.base import Chunk, Engine, EngineError, FinishReason, GenerationRequest, Sampling
from tests.support.sink import Taking

_ids = itertools.count()


def user(text: str) -> list[Message]:
    return [Message("user", text)]


async def ask(engine: Engine, messages: Sequence[Message], sampling: Sampling) -> list[Chunk]:
    """Return all chunks of one answer."""
    prompt = await engine.render(messages)
    request = GenerationRequest(f"ask-{next(_ids)}", prompt, sampling)
    async with aclosing(engine.generate(request)) as chunks:
        return [chunk async for chunk in chunks]


def text_of(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


async def begin(engine: Engine, messages: Sequence[Message], sampling: Sampling):
    """Return the generator of an answer that has given its first chunk."""
    prompt = await engine.render(messages)
    chunks = engine.generate(GenerationRequest(f"begin-{next(_ids)}", prompt, sampling))
    return chunks, await anext(chunks)


class EngineContract:
    """The suite. Greedy sampling makes a model's answers repeatable."""

    QUESTION = "What is the capital of France?"
    OTHER = "Write the numbers from one to ten."

    async def test_an_answer_ends_by_itself(self, engine: Engine) -> None:
        """The last chunk, and only it, has a finish reason; the token counts add up."""
        chunks = await ask(engine, user(self.QUESTION), Sampling(64, temperature=0.0))
        assert text_of(chunks).strip()
        assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1].finish_reason is FinishReason.STOP
        assert 0 < sum(chunk.token_count for chunk in chunks) <= 64
        assert engine.unfinished == 0

    @pytest.mark.parametrize("patience", [0, 3, 99])
    async def test_a_sink_takes_chunks_in_their_order(self, engine: Engine, patience: int) -> None:
        """Handed over or yielded, it is one answer, whose last chunk is yielded."""
        sampling = Sampling(16, temperature=0.0, ignore_eos=True)
        whole = text_of(await ask(engine, user(self.QUESTION), sampling))
        prompt = await engine.render(user(self.QUESTION))
        sink = Taking(patience)
        taken = sink.chunks
        request = GenerationRequest(f"sink-{next(_ids)}", prompt, sampling, sink=sink)
        async with aclosing(engine.generate(request)) as chunks:
            async for chunk in chunks:
                last = chunk
                taken.append(chunk)
        assert text_of(taken) == whole
        assert sum(chunk.token_count for chunk in taken) == 16
        assert [chunk.finish_reason for chunk in taken] == [None] * (len(taken) - 1) + [FinishReason.LENGTH]
        assert taken[-1] is last

    @pytest.mark.parametrize("limit", [1, 2, 5])
    async def test_max_tokens_ends_an_answer(self, engine: Engine, limit: int) -> None:
        """With `ignore_eos` exactly `max_tokens` tokens come, and the reason is LENGTH."""
        chunks = await ask(engine, user(self.QUESTION), Sampling(limit, temperature=0.0, ignore_eos=True))
        assert sum(chunk.token_count for chunk in chunks) == limit
        assert chunks[-1].finish_reason is FinishReason.LENGTH

    async def test_a_stop_string_split_over_tokens_never_leaks(self, engine: Engine) -> None:
        """The answer ends right before the stop string, of which no part is shown."""
        whole = text_of(await ask(engine, user(self.QUESTION), Sampling(24, temperature=0.0)))
        stop = whole[len(whole) // 2 - 4 : len(whole) // 2 + 4]
        chunks = await ask(engine, user(self.QUESTION), Sampling(24, temperature=0.0, stop=("never said", stop)))
        assert text_of(chunks) == whole[: whole.index(stop)]
        assert chunks[-1].finish_reason is FinishReason.STOP

    async def test_what_only_looks_like_a_stop_string_comes_in_the_end(self, engine: Engine) -> None:
        """Text held back for a stop string that never completes is part of the answer."""
        whole = text_of(await ask(engine, user(self.QUESTION), Sampling(24, temperature=0.0)))
        stop = whole[-3:] + "!?"
        chunks = await ask(engine, user(self.QUESTION), Sampling(24, temperature=0.0, stop=(stop,)))
        assert text_of(chunks) == whole

    async def test_min_tokens_goes_before_stop_strings(self, engine: Engine) -> None:
        """Stop strings count only after `min_tokens`."""
        whole = text_of(await ask(engine, user(self.QUESTION), Sampling(24, temperature=0.0)))
        sampling = Sampling(24, temperature=0.0, min_tokens=3, stop=(whole[0],))
        chunks = await ask(engine, user(self.QUESTION), sampling)
        assert sum(chunk.token_count for chunk in chunks) >= 3

    async def test_closing_the_iterator_aborts_at_once(self, engine: Engine) -> None:
        """`unfinished` falls with `aclose()`, and the engine serves the next request."""
        chunks, _ = await begin(engine, user(self.OTHER), Sampling(500, ignore_eos=True))
        assert engine.unfinished == 1
        await chunks.aclose()
        assert engine.unfinished == 0
        await self.test_max_tokens_ends_an_answer(engine, 2)

    async def test_cancelling_the_consumer_aborts_at_once(self, engine: Engine) -> None:
        """A consumer that is cancelled while it waits leaves no request behind."""
        started = asyncio.Event()

        async def consume() -> None:
            prompt = await engine.render(user(self.OTHER))
            request = GenerationRequest("cancelled", prompt, Sampling(500, ignore_eos=True))
            async with aclosing(engine.generate(request)) as chunks:
                async for _ in chunks:
                    started.set()

        task = asyncio.create_task(consume())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.unfinished == 0

    async def test_answers_made_at_once_do_not_mix(self, engine: Engine) -> None:
        """Each of several concurrent requests gets the answer it gets alone."""
        questions = [self.QUESTION, self.OTHER] * 2
        sampling = Sampling(10, temperature=0.0)
        alone = {text: text_of(await ask(engine, user(text), sampling)) for text in set(questions)}
        answers = await asyncio.gather(*(ask(engine, user(text), sampling) for text in questions))
        assert [text_of(chunks) for chunks in answers] == [alone[text] for text in questions]

    async def test_a_late_consumer_gets_one_chunk(self, engine: Engine) -> None:
        """What gathers while nobody reads is one chunk; on a busy machine that can be the very first."""
        chunks, first = await begin(engine, user(self.OTHER), Sampling(6, temperature=0.0, ignore_eos=True))
        await ask(engine, user(self.OTHER), Sampling(12, temperature=0.0, ignore_eos=True))
        rest = [chunk async for chunk in chunks]
        assert len(rest) == (0 if first.finish_reason else 1)
        last = [first, *rest][-1]
        assert sum(chunk.token_count for chunk in (first, *rest)) == 6
        assert last.finish_reason is FinishReason.LENGTH

    async def test_a_second_turn_finds_the_first_in_the_prefix_cache(self, engine: Engine) -> None:
        """`cached_tokens` is above 0 on a follow-up, the same on every chunk, and below the prompt's length."""
        answer = text_of(await ask(engine, user(self.QUESTION), Sampling(16, temperature=0.0)))
        turns = [*user(self.QUESTION), Message("assistant", answer), *user("And of Italy?")]
        prompt = await engine.render(turns)
        chunks = await ask(engine, turns, Sampling(2, temperature=0.0))
        assert 0 < chunks[0].cached_tokens < prompt.token_count
        assert {chunk.cached_tokens for chunk in chunks} == {chunks[0].cached_tokens}

    async def test_the_prompt_counts_its_tokens(self, engine: Engine) -> None:
        """More text is more tokens, and the messages stay with the prompt; an engine that takes messages has no ids."""
        short, long = await engine.render(user("one")), await engine.render(user("one two three four"))
        assert 0 < short.token_count < long.token_count
        assert len(short.token_ids) in {0, short.token_count}
        assert short.messages == (Message("user", "one"),)

    async def test_bad_parameters_fail_this_request_alone(self, engine: Engine) -> None:
        """EngineError, in one line; the engine is as it was."""
        with pytest.raises(EngineError) as caught:
            await ask(engine, user(self.QUESTION), Sampling(2, min_tokens=5))
        assert "\n" not in str(caught.value)
        assert engine.unfinished == 0
        await self.test_max_tokens_ends_an_answer(engine, 2)

    async def test_a_used_id_can_be_used_again(self, engine: Engine) -> None:
        """Ids need to be unique among unfinished requests only."""
        prompt = await engine.render(user(self.QUESTION))
        for _ in range(2):
            async with aclosing(engine.generate(GenerationRequest("same", prompt, Sampling(2)))) as chunks:
                assert [chunk async for chunk in chunks][-1].finish_reason is not None

    async def test_a_running_engine_is_healthy(self, engine: Engine) -> None:
        """`check_health` returns, and the sizes are known."""
        await engine.check_health()
        assert engine.context_length > 0
        assert engine.max_concurrency > 0
