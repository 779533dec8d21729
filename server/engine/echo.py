"""An engine that says the last user message again, word by word: for tests and for load without a model.

With a script it says what that has for what was said last, chunk by chunk; with parsers, what it says is read as a
model's output is. So tools and thoughts can be tried without a model that masters them.

A token is a word with the white space after it (the first word also has what is before it), so the words joined
are the message. A chat template is not imitated: a prompt has the tokens of its messages, framing counts 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import zlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from protocol.events import Logprob, Written
from protocol.items import Message
from protocol.options import PLAIN, Options
from server.engine.base import (
    Chunk,
    EngineError,
    EngineStartError,
    FinishReason,
    GenerationRequest,
    ProgressCallback,
    Prompt,
    Sampling,
    logprob,
    refuse_options,
)
from server.engine.pacer import Clock, Pacer
from server.engine.parsing import OutputReader, Parsers
from server.engine.prompt import INLINE_CHARS
from server.engine.script import Script, byte_tokenizer, load_script
from server.engine.stops import StopFilter

CONTEXT_LENGTH: Final = 8192  # tokens, as of the default model
MAX_CONCURRENCY: Final = 4096  # answers at once
LOAD_STEPS: Final = 10  # of the progress of a load
BURST_WORDS: Final = 64  # words a pull without a rate, after the first: callers pull once a journal tick

NO_PARSERS: Final = Parsers()

_WORD: Final = re.compile(r"\s*\S+\s*|\s+")
_VOCABULARY: Final = 1 << 16
_REMEMBERED_PROMPTS: Final = 4096


class EchoEngine:
    """See the module's text. Besides the window of `context_length`, which callers keep, it enforces nothing.

    rate: tokens a second for each answer; 0 means as fast as asked: the first word, then BURST_WORDS a pull.
    ttft_ms: time to the first token, in milliseconds.
    load_ms: what `start` takes, in milliseconds.
    context_length: in tokens.
    max_concurrency: answers made at once; more wait, first come first served.
    script: a file with what it says; None means that it only echoes.
    parsers: what reads its output.
    clock: where the time comes from; None means the running event loop.
    """

    def __init__(
        self,
        name: str,
        *,
        rate: float,
        ttft_ms: float,
        load_ms: float = 0.0,
        context_length: int = CONTEXT_LENGTH,
        max_concurrency: int = MAX_CONCURRENCY,
        script: Path | None = None,
        parsers: Parsers = NO_PARSERS,
        clock: Clock | None = None,
    ) -> None:
        if rate < 0 or ttft_ms < 0:
            raise EngineStartError(f"echo rate and ttft must be 0 or more; got {rate} and {ttft_ms}")
        self.name = name
        self.takes_images = False
        self.context_length = context_length
        self.max_concurrency = max_concurrency
        self._script_file = script
        self._script = Script(())
        self._parsers = parsers
        self._reader: OutputReader | None = None
        self._rate = rate
        self._ttft = ttft_ms / 1000
        self._load_s = load_ms / 1000
        self._pacer = Pacer(f"engine {name} was closed", clock)
        self._slots = asyncio.Semaphore(max_concurrency)  # wakes its waiters in their order
        self._unfinished = 0
        self._prefixes: OrderedDict[int, int] = OrderedDict()

    @property
    def unfinished(self) -> int:
        """Requests not yet ended."""
        return self._unfinished

    async def start(self, progress: ProgressCallback) -> None:
        """Read the script, load the parsers, where there are any; then be ready, or after what loading is to take."""
        if self._script_file is not None:
            self._script = await asyncio.to_thread(load_script, self._script_file)
        if self._parsers != NO_PARSERS:
            progress("loading vLLM's parsers", None)
            self._reader = await asyncio.to_thread(lambda: OutputReader(byte_tokenizer(), self._parsers))
        if not self._load_s:
            progress("there is nothing to load", None)
        for done in range(LOAD_STEPS if self._load_s else 0):
            progress("pretending to load", done / LOAD_STEPS)
            await asyncio.sleep(self._load_s / LOAD_STEPS)

    async def check(self, options: Options) -> None:
        """Refuse what nothing here would keep to: a script is taken at its word."""
        self._check_open()
        if self._script_file is None or self._reader is None:
            refuse_options(options, has_logprobs=True)

    async def render(self, messages: Sequence[Message], options: Options = PLAIN) -> Prompt:  # noqa: ARG002 they have no words
        """Split the messages into words."""
        self._check_open()
        if sum(len(message.content) for message in messages) > INLINE_CHARS:
            token_ids = await asyncio.to_thread(_token_ids, messages)
        else:
            token_ids = _token_ids(messages)
        return Prompt(token_ids, len(token_ids), tuple(messages))

    async def extend(self, prompt: Prompt, written: Written) -> Prompt:
        """Add the words said already; `generate` goes on behind them."""
        self._check_open()
        token_ids = [*prompt.token_ids, *_token_ids((Message("assistant", written.text),))]
        return replace(prompt, token_ids=token_ids, token_count=len(token_ids), continuation=written)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Yield the last user message of the prompt."""
        self._check_open()
        _check(request.sampling)
        self._unfinished += 1
        try:
            async with self._slots:
                self._check_open()
                cached = self._cached_tokens(request.prompt)
                answer = self._reader.begin(request.options, ()) if self._reader else None
                if answer is not None and request.prompt.continuation.text:
                    yield Chunk("", 0, None, cached, await answer.again(request.prompt.continuation.text))
                async with contextlib.aclosing(self._speak(request)) as chunks:
                    async for text, count, reason in chunks:
                        chunk = Chunk(text, count, reason, cached, logprobs=_certain(text, request.options))
                        yield chunk if answer is None else answer.chunk(chunk)
        finally:
            self._unfinished -= 1

    async def check_health(self) -> None:
        """Raise EngineDeadError after `close`."""
        self._check_open()

    async def sleep(self) -> None:
        """Forget what was cached."""
        self._check_open()
        self._prefixes.clear()

    async def wake(self) -> None:
        """Be ready at once."""
        self._check_open()

    def close(self) -> None:
        """End running requests."""
        self._pacer.close()

    async def wait_closed(self) -> None:
        """Return at once: there is no process."""

    def _check_open(self) -> None:
        self._pacer.check_open()

    async def _speak(self, request: GenerationRequest) -> AsyncGenerator[tuple[str, int, FinishReason | None], None]:
        sampling = request.sampling
        script = self._script.answer(request.prompt.messages, request.options)
        words = _answer(request.prompt, sampling) if script is None else _rest(script, request.prompt.continuation.text)
        burst = BURST_WORDS if script is None else 1
        stops = StopFilter(sampling.stop)
        start = self._pacer.time() + self._ttft
        said = 0
        word = next(words, None)
        while word is not None and said < sampling.max_tokens:
            due = await self._due(start, said, burst)
            text, count = "", 0
            # How many words are due is read off the clock, so a late consumer gets all of them at once.
            while word is not None and said < min(due, sampling.max_tokens) and not stops.hit:
                said += 1
                count += 1
                text += stops.feed(word) if said > (sampling.min_tokens or 0) else stops.pass_by(word)
                word = next(words, None)
            if stops.hit:
                yield text, count, FinishReason.STOP
                return
            if word is None or said >= sampling.max_tokens:
                yield text + stops.flush(), count, FinishReason.STOP if word is None else FinishReason.LENGTH
                return
            yield text, count, None
        # Only an empty answer comes here: the message had no words.
        await self._due(start, 0, burst)
        yield "", 0, FinishReason.STOP

    async def _due(self, start: float, said: int, burst: int) -> int:
        """Wait until another word is due; return how many are due then, in all. burst: of a pull without a rate."""
        await self._pacer.wait_until(start + (said / self._rate if self._rate else 0))
        if not self._rate:
            return said + (burst if said else 1)
        return max(said, int((self._pacer.time() - start) * self._rate)) + 1

    def _cached_tokens(self, prompt: Prompt) -> int:
        """Imitate a prefix cache: tokens of the longest beginning, in whole messages, that was served before."""
        cached = tokens = chain = 0
        for message in prompt.messages:
            chain = hash((chain, message.role, message.content))
            tokens += sum(1 for _ in _WORD.finditer(message.content))
            if chain in self._prefixes:
                cached = tokens
            self._prefixes[chain] = tokens
            self._prefixes.move_to_end(chain)
        while len(self._prefixes) > _REMEMBERED_PROMPTS:
            self._prefixes.popitem(last=False)
        return cached


def _token_ids(messages: Sequence[Message]) -> list[int]:
    """Return a stable small number for each word."""
    return [
        zlib.crc32(word.encode("utf-8", "surrogatepass")) % _VOCABULARY
        for message in messages
        for word in _WORD.findall(message.content)
    ]


def _answer(prompt: Prompt, sampling: Sampling) -> Iterator[str]:
    """Yield the words to say; over again while the end is to be ignored or `min_tokens` are not reached."""
    text = next((message.content for message in reversed(prompt.messages) if message.role == "user"), "")
    words = _WORD.findall(text)
    said = 0
    skipped = len(prompt.continuation.text)  # characters of the answer that were said before
    while words:
        for word in words:
            if skipped < len(word):
                yield word[skipped:]
            skipped = max(0, skipped - len(word))
        said += len(words)
        if not sampling.ignore_eos and said >= (sampling.min_tokens or 0):
            return


def _rest(chunks: Sequence[str], said: str) -> Iterator[str]:
    """Yield a script's chunks behind what was said before."""
    skipped = len(said)
    for chunk in chunks:
        if skipped < len(chunk):
            yield chunk[skipped:]
        skipped = max(0, skipped - len(chunk))


def _certain(text: str, options: Options) -> tuple[Logprob, ...]:
    """Return what a model would tell that had no doubt."""
    if options.top_logprobs is None:
        return ()
    words = _WORD.findall(text)
    return tuple(logprob(word, 0.0, [logprob(word, 0.0)] if options.top_logprobs else []) for word in words)


def _check(sampling: Sampling) -> None:
    if sampling.max_tokens < 1:
        raise EngineError(f"max_tokens must be at least 1, got {sampling.max_tokens}")
    if (sampling.min_tokens or 0) > sampling.max_tokens:
        raise EngineError(f"min_tokens {sampling.min_tokens} is more than max_tokens {sampling.max_tokens}")
