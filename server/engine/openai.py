"""A model behind another OpenAI-compatible server: vLLM, SGLang, Ray Serve LLM, llama.cpp. Long, as each has its ways.

What differs between them, and what is done about it:

- The window: vLLM and SGLang tell it in their list of models (`max_model_len`), llama.cpp as `meta.n_ctx`; elsewhere
  it must be configured.
- The length of a prompt: vLLM's server counts it (`POST /tokenize`). Elsewhere it is estimated, and where the client
  sets no `max_output_tokens` the server is left to find out how much room there is.
- Going on with an answer that broke off: `continue_final_message`, as vLLM and SGLang call it.
- Control tokens: these servers find them in message text, too. With `tokenizer` set, prompts are made here, where
  text is only ever text, and go out as token ids (Completions): then all of the above is exact.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeGuard

import aiohttp
import msgspec

from protocol.errors import excerpt
from protocol.events import Written
from protocol.items import Message, mixed
from protocol.options import PLAIN, Options
from server.engine.base import (
    AnswerLostError,
    BusyError,
    Chunk,
    EngineDeadError,
    EngineError,
    EngineStartError,
    GenerationRequest,
    ProgressCallback,
    Prompt,
    PromptError,
    RequestError,
    given,
    is_cancelled,
    refuse_options,
)
from server.engine.completion_stream import CompletionStream
from server.engine.endpoint import Endpoint, EndpointDownError, EndpointRefusedError, EndpointSilentError
from server.engine.prompt import PromptRenderer, merge_turns
from server.engine.tokenizer import load_tokenizer

# Estimates where nobody counts: English has about 4 characters a token, and each message some framing.
CHARS_PER_TOKEN: Final = 4
FRAMING_TOKENS: Final = 4
IMAGE_TOKENS: Final = 768  # models differ between some 64 and 2,000

LAST_WORDS_S: Final = 5.0  # the usage comes at once behind the end of the text, where it comes

_EVENT_STREAM: Final = "text/event-stream"
_COUNTS_ALL_THE_TIME: Final = frozenset({"vllm", "sglang"})  # `owned_by` of servers that send usage with each piece
_REFUSED_INPUT: Final = frozenset({400, 413, 422})
_BUSY: Final = frozenset({429, 503})
BUSY_RETRY_S: Final = 5.0  # where the server names no time


@dataclass(frozen=True, slots=True)
class OpenAISettings:
    """Where the model is and how to ask for it.

    url: the base, mostly ending in /v1.
    model: its name there.
    api_key_env: environment variable with the key; None sends none.
    context_length: prompt and answer together, in tokens; None asks the server.
    max_concurrency: answers asked for at once.
    silence_timeout_s: a stream that brings nothing this long counts as broken.
    tokenizer: a folder with tokenizer.json and the chat template; None leaves both to the server.
    """

    url: str
    model: str
    api_key_env: str | None = None
    context_length: int | None = None
    max_concurrency: int = 256
    silence_timeout_s: float = 120.0
    tokenizer: str | None = None


class OpenAIEngine:
    """See the module's text. name: for error texts."""

    def __init__(self, name: str, settings: OpenAISettings) -> None:
        self.name = name
        self.takes_images = settings.tokenizer is None  # prompts made of tokens have no place for them
        self.context_length = settings.context_length or 0
        self.max_concurrency = settings.max_concurrency
        self._settings = settings
        self._endpoint = Endpoint(settings.url, settings.api_key_env, settings.silence_timeout_s)
        self._root = self._endpoint.url.removesuffix("/v1")
        self._renderer: PromptRenderer | None = None
        self._counts_prompts = False
        self._counts_always = False
        self._is_vllm = False
        self._unfinished = 0
        self._opening: set[asyncio.Task[aiohttp.ClientResponse]] = set()
        self._running: set[aiohttp.ClientResponse] = set()
        self._is_open = False
        self._is_closed = False

    @property
    def unfinished(self) -> int:
        """Requests not yet ended; 0 when the engine was closed."""
        return 0 if self._is_closed else self._unfinished

    # Its life

    async def start(self, progress: ProgressCallback) -> None:
        """Look the model up in the server's list."""
        progress(f"asking {self._endpoint.url} for its models", None)
        try:
            if self._settings.tokenizer is not None:
                self._renderer = PromptRenderer(await asyncio.to_thread(load_tokenizer, self._settings.tokenizer))
            self._endpoint.open()
            self._learn(await self._look_up())
            self._counts_prompts = self._renderer is None and await self._can_count()
        except EngineStartError:
            raise
        except EngineError as error:
            raise EngineStartError(f"model {self.name} cannot be used: {error}") from None
        self._is_open = True

    async def _look_up(self) -> dict[str, Any]:
        """Return the model's row in the server's list. Raises EngineStartError with the nearest names."""
        answer = await self._endpoint.get("models", retries=1)
        rows = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise EngineStartError(f"{self._endpoint.url}/models answered no list of models: is the url right?")
        names = [str(row.get("id")) for row in rows]
        if self._settings.model in names:
            return dict(rows[names.index(self._settings.model)])
        near = difflib.get_close_matches(self._settings.model, names, n=3, cutoff=0.3) or names[:3]
        shown = (excerpt(self._endpoint.without_key(name)) for name in near)
        there = f"it has {', '.join(shown)}" if near else "its list is empty"
        raise EngineStartError(f"{self._endpoint.url} has no model {self._settings.model!r}: {there}; set source")

    def _learn(self, row: dict[str, Any]) -> None:
        owner = str(row.get("owned_by"))
        self._counts_always = owner in _COUNTS_ALL_THE_TIME
        self._is_vllm = owner == "vllm"
        if self._settings.context_length is not None:
            return
        meta = row.get("meta")
        told = row.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
        if not _is_count(told):
            raise EngineStartError(f"{self._endpoint.url} does not tell the model's window: set context_length")
        self.context_length = told

    async def _can_count(self) -> bool:
        """Whether the server counts a prompt's tokens for us."""
        try:
            await self._count([Message("user", "x")])
        except EngineError:
            return False
        return True

    async def check_health(self) -> None:
        """Ask the server whether it can work, where it tells; else for its models."""
        self._check_open()
        try:
            await self._healthy()
        except EngineError as error:
            raise EngineDeadError(str(error)) from None

    async def _healthy(self) -> None:
        try:
            await self._endpoint.get(f"{self._root}/health", retries=1)
        except EndpointRefusedError as error:
            if error.status >= 500:  # noqa: PLR2004 HTTP's own number
                raise
            await self._endpoint.get("models", retries=1)
        except EndpointDownError:
            raise
        except EngineError:
            pass  # vLLM's answer is empty

    def close(self) -> None:
        """End running requests; the server stops making what nobody reads."""
        self._is_closed = True
        for task in self._opening:
            task.cancel()
        for response in tuple(self._running):
            response.close()

    async def wait_closed(self) -> None:
        """Close the connections."""
        self._is_closed = True
        await self._endpoint.close()

    def _check_open(self) -> None:
        if self._is_closed or not self._is_open:
            raise EngineDeadError(f"engine {self.name} is not running")

    # Prompts

    async def check(self, options: Options) -> None:
        """Refuse what is not handed on yet."""
        self._check_open()
        refuse_options(options, has_logprobs=True)

    async def render(self, messages: Sequence[Message], options: Options = PLAIN) -> Prompt:  # noqa: ARG002 as in `check`
        """Make the prompt ready: here, or there when the answer is asked for."""
        self._check_open()
        if self._renderer is not None:
            return await self._renderer.render(messages)
        merged = merge_turns(messages)
        if not self._counts_prompts:
            return Prompt((), _estimate(merged), tuple(messages))
        return Prompt((), await self._counted(merged), tuple(messages))

    async def extend(self, prompt: Prompt, written: Written) -> Prompt:
        """Put the beginning of the answer behind the prompt."""
        self._check_open()
        if self._renderer is not None:
            return await self._renderer.extend(prompt, written)
        count = prompt.token_count + _estimate([Message("assistant", written.text)])
        if self._counts_prompts:
            count = await self._counted(merge_turns(prompt.messages), written.text)
        return replace(prompt, token_count=count, continuation=written)

    async def _counted(self, messages: Sequence[Message], continuation: str = "") -> int:
        try:
            return await self._count(messages, continuation)
        except EndpointRefusedError as error:
            raise (PromptError(error.says or str(error)) if error.status in _REFUSED_INPUT else error) from None
        except EndpointSilentError:
            raise  # of one request; whether the server lives is for `check_health` to find
        except EndpointDownError as error:
            raise await self._lost(error) from None

    async def _lost(self, error: EndpointDownError) -> EngineError:
        """Return what a request that got no answer means: the server may refuse to talk about this one alone."""
        try:
            await self._healthy()
        except EngineError:
            return EngineDeadError(str(error))
        return AnswerLostError(str(error))

    async def _count(self, messages: Sequence[Message], continuation: str = "") -> int:
        body = {"model": self._settings.model, **_conversation(messages, continuation)}
        answer = await self._endpoint.post(f"{self._root}/tokenize", body, retries=1)
        count = answer.get("count") if isinstance(answer, dict) else None
        if not _is_count(count):
            raise EngineError(f"{self._root}/tokenize answered no count")
        return count

    # Answers

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Yield the answer as it comes; what has come meanwhile is one chunk."""
        self._check_open()
        continuation = request.prompt.continuation.text if self._renderer is None else ""
        repeated = continuation[len(continuation.rstrip()) :]
        limit = request.sampling.max_tokens if self._is_bounded(request) else self.context_length
        stream = CompletionStream(repeated, request.options.top_logprobs, limit, self._endpoint.without_key)
        self._unfinished += 1
        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._ask(request)
            self._running.add(response)
            async with contextlib.aclosing(self._chunks(response, stream)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self._unfinished -= 1
            if response is not None:
                self._running.discard(response)
                response.close()  # at once: how the server learns that nobody wants the rest

    async def _chunks(self, response: aiohttp.ClientResponse, stream: CompletionStream) -> AsyncGenerator[Chunk, None]:
        try:
            async with contextlib.aclosing(self._endpoint.pieces(response)) as parts:
                while data := await _next(parts, LAST_WORDS_S if stream.has_reason else None):
                    chunk = stream.feed(data)
                    if stream.is_over:
                        yield _joined(chunk, self._last(stream))
                        return
                    if chunk is not None:
                        yield chunk
        except EndpointDownError as error:
            if self._is_closed:
                raise EngineDeadError(f"engine {self.name} was closed") from None
            if (last := stream.finish()) is None:
                raise AnswerLostError(str(error)) from None
            yield last
            return
        yield self._last(stream)

    def _last(self, stream: CompletionStream) -> Chunk:
        last = stream.finish()
        if last is None:
            raise AnswerLostError(f"the stream of {self._endpoint.url} ended without saying why")
        return last

    async def _ask(self, request: GenerationRequest) -> aiohttp.ClientResponse:
        """Return the beginning of the answer; errors that help nobody when repeated are told as they are."""
        path, body = self._body(request)
        opening = asyncio.create_task(self._endpoint.stream(path, body), name=f"ask for {request.id}")
        self._opening.add(opening)
        try:
            response = await opening
        except asyncio.CancelledError:
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result().close()  # it has come in the same moment
            if self._is_closed and opening.cancelled() and not is_cancelled():
                raise EngineDeadError(f"engine {self.name} was closed") from None
            raise
        except EndpointSilentError as error:
            raise AnswerLostError(str(error)) from None
        except EndpointDownError as error:
            raise await self._lost(error) from None
        except EndpointRefusedError as error:
            raise _refusal(error) from None
        finally:
            self._opening.discard(opening)
        if response.content_type != _EVENT_STREAM:
            kind = response.content_type
            response.close()
            raise EngineError(f"{self._endpoint.url} answered {kind}, not a stream of events: is it such a server?")
        return response

    def _body(self, request: GenerationRequest) -> tuple[str, dict[str, Any]]:
        """Return the path and the body of the request."""
        sampling, prompt = request.sampling, request.prompt
        body: dict[str, Any] = {
            "model": self._settings.model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._counts_always:
            body["stream_options"]["continuous_usage_stats"] = True
        if request.cache_salt and self._is_vllm:
            body["cache_salt"] = request.cache_salt  # vLLM's word; OpenAI itself refuses what it does not know
        body |= given(sampling)  # servers other than vLLM take those of its names that they know
        if not self._is_bounded(request):
            del body["max_tokens"]  # all the room that we think there is: the server knows better
        top = request.options.top_logprobs
        if self._renderer is not None:
            asked = {} if top is None else {"logprobs": top}
            return "completions", body | asked | {"prompt": list(prompt.token_ids)}
        if top is not None:
            body |= {"logprobs": True, "top_logprobs": top}
        return "chat/completions", body | _conversation(merge_turns(prompt.messages), prompt.continuation.text)

    def _is_bounded(self, request: GenerationRequest) -> bool:
        """Whether less is wanted than all the room that there is, or we know how much that is."""
        is_counted = self._renderer is not None or self._counts_prompts
        return is_counted or request.sampling.max_tokens < self.context_length - request.prompt.token_count


def _refusal(error: EndpointRefusedError) -> EngineError:
    if error.status in _BUSY:
        return BusyError(str(error), error.pause_s or BUSY_RETRY_S)
    return RequestError(error.says or str(error)) if error.status in _REFUSED_INPUT else error


def _is_count(told: object) -> TypeGuard[int]:
    return isinstance(told, int) and not isinstance(told, bool) and told > 0


async def _next(parts: AsyncGenerator[bytes, None], timeout_s: float | None) -> bytes:
    """Return the next bytes, or none at the end of the stream or of the time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await anext(parts, b"")
    except TimeoutError:
        return b""


def _conversation(messages: Sequence[Message], continuation: str) -> dict[str, Any]:
    """Return what asks for the next answer, or for the rest of one that has begun."""
    turns = [_turn(message) for message in messages]
    if not continuation:
        return {"messages": turns}
    # Templates trim, and the place where an untrimmed text ends would not be found.
    turns.append({"role": "assistant", "content": continuation.rstrip()})
    return {"messages": turns, "add_generation_prompt": False, "continue_final_message": True}


def _turn(message: Message) -> dict[str, Any]:
    """Return a message in the words of Chat Completions."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.images:
        turn["content"] = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "image_url", "image_url": {"url": part.url}}
            for part in mixed(message.content, message.images)
        ]
    if message.calls:
        turn["tool_calls"] = [
            {"type": "function", "id": call.call_id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    if message.call_id is not None:
        turn["tool_call_id"] = message.call_id
    return turn


def _estimate(messages: Sequence[Message]) -> int:
    return sum(
        FRAMING_TOKENS + -(-len(message.content) // CHARS_PER_TOKEN) + IMAGE_TOKENS * len(message.images)
        for message in messages
    )


def _joined(chunk: Chunk | None, last: Chunk) -> Chunk:
    return last if chunk is None else msgspec.structs.replace(chunk, finish_reason=last.finish_reason)
