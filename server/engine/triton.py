"""A model on a Triton Inference Server, over gRPC, as Triton's vLLM backend serves it: text in, pieces of text out.

The contract (triton-inference-server/vllm_backend, `src/model.py`): inputs `text_input`, `stream`,
`sampling_parameters` (JSON, by vLLM's names) and `exclude_input_in_output`; one response for each piece, in
`text_output`. Newer versions also tell `finish_reason` and `num_output_tokens` when asked; where the model's metadata
has no such inputs, tokens are counted by pieces, and an answer that has as many as it may counts as cut off.

Prompts are made here, from the model's own chat template: the contract knows no messages. It takes text alone, so
control tokens that a message spells are broken up with a zero width space.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import difflib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from protocol.errors import excerpt
from protocol.events import Written
from protocol.items import Message
from protocol.options import PLAIN, Options
from server.engine.base import (
    AnswerLostError,
    Chunk,
    EngineDeadError,
    EngineError,
    EngineStartError,
    FinishReason,
    GenerationRequest,
    ProgressCallback,
    Prompt,
    Sampling,
    given,
    is_cancelled,
    refuse_options,
)
from server.engine.completion_stream import PIECES_PER_TOKEN
from server.engine.prompt import PromptRenderer
from server.engine.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from tritonclient.grpc import InferResult
    from tritonclient.grpc.aio import InferenceServerClient

QUESTION_TIMEOUT_S: Final = 10.0  # is it alive, is the model ready, what does it take
MAX_SHOWN_CHARS: Final = 120  # of Triton's words, in error texts

_NEEDED_INPUTS: Final = ("text_input", "sampling_parameters")
_OPTIONAL_INPUTS: Final = {  # name -> what it is set to where the model knows it
    "stream": True,
    "exclude_input_in_output": True,
    "return_finish_reason": True,
    "return_num_output_tokens": True,
}
_FINISH_REASONS: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
_NOT_YET: Final = frozenset({"", "None"})  # what the backend says for an answer that goes on
# gRPC codes that mean: nobody is there, or not any more.
_GONE: Final = frozenset({"UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED"})


@dataclass(frozen=True, slots=True)
class TritonSettings:
    """Where the model is.

    address: host:port of Triton's gRPC service.
    model: its name in the model repository.
    tokenizer: folder with the model's tokenizer.json and chat template.
    context_length: prompt and answer together, in tokens; Triton does not tell it.
    max_concurrency: answers asked for at once.
    silence_timeout_s: an answer that brings nothing this long counts as broken off.
    model_control: load the model at the start and unload it at the end; Triton must run with
        `--model-control-mode=explicit`. False: it must be ready already.
    load_timeout_s: loading may take this long.
    """

    address: str
    model: str
    tokenizer: str
    context_length: int
    max_concurrency: int = 256
    silence_timeout_s: float = 120.0
    model_control: bool = False
    load_timeout_s: float = 1800.0


class TritonEngine:
    """See the module's text. name: for error texts."""

    def __init__(self, name: str, settings: TritonSettings) -> None:
        self.name = name
        self.takes_images = False
        self.context_length = settings.context_length
        self.max_concurrency = settings.max_concurrency
        self._settings = settings
        self._client: InferenceServerClient | None = None
        self._renderer: PromptRenderer | None = None
        self._inputs: frozenset[str] = frozenset()
        self._answers: set[_Answer] = set()
        self._was_loaded = False  # by us
        self._is_closed = False

    @property
    def unfinished(self) -> int:
        """Requests not yet ended; 0 when the engine was closed."""
        return 0 if self._is_closed else len(self._answers)

    # Its life

    async def start(self, progress: ProgressCallback) -> None:
        """Connect, and see that the model is there, ready, and of the kind that we speak with."""
        settings = self._settings
        try:
            from tritonclient.grpc.aio import InferenceServerClient  # noqa: PLC0415 - optional
        except ImportError:
            raise EngineStartError("Triton's client is not installed: pip install 'tokenwire[triton]'") from None
        self._renderer = PromptRenderer(await asyncio.to_thread(load_tokenizer, settings.tokenizer))
        progress(f"asking Triton at {settings.address} for the model", None)
        self._client = client = InferenceServerClient(settings.address)
        try:
            with self._translated():
                await self._find(client)
                if settings.model_control:
                    progress(f"Triton loads {settings.model}", None)
                    await client.load_model(settings.model, client_timeout=settings.load_timeout_s)
                    self._was_loaded = True
                await self._check_ready(client)
                await self._check_contract(client)
        except EngineStartError:
            raise
        except EngineError as error:
            raise EngineStartError(f"model {self.name} cannot be used: {error}") from None

    async def _find(self, client: InferenceServerClient) -> None:
        index = await client.get_model_repository_index(client_timeout=QUESTION_TIMEOUT_S)
        names = sorted({row.name for row in index.models})
        if self._settings.model in names:
            return
        near = difflib.get_close_matches(self._settings.model, names, n=3, cutoff=0.3) or names[:3]
        there = f"it has {', '.join(map(excerpt, near))}" if near else "its repository is empty"
        raise EngineStartError(
            f"Triton at {self._settings.address} has no model {self._settings.model!r}: {there}; set source"
        )

    async def _check_ready(self, client: InferenceServerClient) -> None:
        if not await client.is_model_ready(self._settings.model, client_timeout=QUESTION_TIMEOUT_S):
            hint = "" if self._settings.model_control else ": load it there, or set model_control"
            raise EngineError(f"Triton at {self._settings.address} has {self._settings.model} not ready{hint}")

    async def _check_contract(self, client: InferenceServerClient) -> None:
        """Learn what the model takes."""
        metadata = await client.get_model_metadata(self._settings.model, client_timeout=QUESTION_TIMEOUT_S)
        self._inputs = frozenset(tensor.name for tensor in metadata.inputs)
        missing = [name for name in _NEEDED_INPUTS if name not in self._inputs]
        missing += [] if any(tensor.name == "text_output" for tensor in metadata.outputs) else ["text_output"]
        if missing:
            raise EngineStartError(
                f"Triton's model {self._settings.model} has no {', '.join(missing)}: the vLLM backend's models have"
            )

    async def check_health(self) -> None:
        """Ask Triton whether the model is ready."""
        client = self._alive()
        try:
            with self._translated():
                await self._check_ready(client)
        except EngineError as error:
            raise EngineDeadError(str(error)) from None

    def close(self) -> None:
        """End running requests; Triton stops making what nobody reads."""
        self._is_closed = True
        for answer in tuple(self._answers):
            answer.cancel()

    async def wait_closed(self) -> None:
        """Unload the model if we have loaded it, and close the connection."""
        self.close()
        client, self._client = self._client, None
        if client is None:
            return
        if self._was_loaded:
            with contextlib.suppress(EngineError), self._translated():  # gone: then it is not loaded either
                await client.unload_model(self._settings.model, client_timeout=QUESTION_TIMEOUT_S)
        await client.close()

    def _alive(self) -> InferenceServerClient:
        if self._is_closed or self._client is None or not self._inputs:
            raise EngineDeadError(f"engine {self.name} is not running")
        return self._client

    # Prompts and answers

    async def check(self, options: Options) -> None:
        """Refuse what is not handed on yet."""
        self._alive()
        refuse_options(options)

    async def render(self, messages: Sequence[Message], options: Options = PLAIN) -> Prompt:  # noqa: ARG002 as in `check`
        """Apply the chat template and count."""
        self._alive()
        assert self._renderer is not None
        return await self._renderer.render(messages)

    async def extend(self, prompt: Prompt, written: Written) -> Prompt:
        """Put the beginning of the answer behind the prompt."""
        self._alive()
        assert self._renderer is not None
        return await self._renderer.extend(prompt, written)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Yield the answer as it comes; what has come meanwhile is one chunk."""
        client = self._alive()
        assert self._renderer is not None
        tensors = _tensors(self._renderer.text(request.prompt), request.sampling, self._inputs)
        answer = _Answer(client, self._settings, request, tensors)
        self._answers.add(answer)
        try:
            with self._translated():
                async with contextlib.aclosing(answer.chunks()) as chunks:
                    async for chunk in chunks:
                        yield chunk
        finally:
            self._answers.discard(answer)
            answer.cancel()  # at once: how Triton learns that nobody wants the rest

    @contextlib.contextmanager
    def _translated(self) -> Any:
        """Say in our words what gRPC and Triton raise."""
        import grpc  # noqa: PLC0415 - optional; imported by now
        from tritonclient.utils import InferenceServerException  # noqa: PLC0415 - as above

        try:
            yield
        except (grpc.RpcError, InferenceServerException, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and (is_cancelled() or not self._is_closed):
                raise
            code = _code(error)
            if self._is_closed or code in _GONE:
                raise EngineDeadError(f"Triton at {self._settings.address} does not answer ({code})") from None
            raise EngineError(f"Triton says: {_words(error)}") from None


class _Answer:
    """One request on a stream of its own, read all the time, so that a late consumer gets one piece."""

    def __init__(
        self, client: InferenceServerClient, settings: TritonSettings, request: GenerationRequest, tensors: list[Any]
    ) -> None:
        self._silence_timeout_s = settings.silence_timeout_s
        self._max_tokens = request.sampling.max_tokens
        self._text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # some models cut characters in two
        self._new_tokens = self._tokens = 0
        self._reason = ""
        self._changed = asyncio.Event()
        body = {
            "model_name": settings.model,
            "request_id": request.id,
            "inputs": tensors,
        }
        self._stream = client.stream_infer(_once(body))
        self._reader = asyncio.create_task(self._read(), name=f"triton {request.id}")
        self._reader.add_done_callback(lambda _: self._changed.set())

    def cancel(self) -> None:
        """Stop it, here and there; idempotent."""
        self._stream.cancel()
        self._reader.cancel()

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield what has come since the last time. Raises what gRPC and Triton raise, and AnswerLostError."""
        while True:
            await self._wait()
            self._changed.clear()
            is_over = self._reader.done()
            if is_over:
                self._reader.result()
                yield self._taken(self._finish_reason())
                return
            if self._tokens > self._max_tokens * PIECES_PER_TOKEN:
                yield self._taken(FinishReason.LENGTH)
                return
            if self._text or self._new_tokens:
                yield self._taken(None)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._silence_timeout_s):
                await self._changed.wait()
        except TimeoutError:
            raise AnswerLostError(f"Triton has said nothing for {self._silence_timeout_s:g} s") from None

    async def _read(self) -> None:
        """Read to the end: we have asked all we ask on this stream, so Triton ends it with the answer."""
        async for result, error in self._stream:
            if error is not None:
                raise error
            self._take(result)

    def _take(self, result: InferResult) -> None:
        said = _bytes(result, "text_output")
        text = self._decoder.decode(said)
        counted = result.as_numpy("num_output_tokens")
        count = bool(said) if counted is None else int(counted.sum())
        self._text += text
        self._new_tokens += count
        self._tokens += count
        self._reason = _bytes(result, "finish_reason").decode("utf-8", "replace") or self._reason
        if text or count:
            self._changed.set()

    def _taken(self, reason: FinishReason | None) -> Chunk:
        text = self._text.rstrip("\ufffd") if reason is FinishReason.LENGTH else self._text
        chunk = Chunk(text, self._new_tokens, reason)
        self._text, self._new_tokens = "", 0
        return chunk

    def _finish_reason(self) -> FinishReason:
        if self._reason not in _NOT_YET:
            if self._reason not in _FINISH_REASONS:
                raise EngineError(f"Triton broke this answer off ({excerpt(self._reason, MAX_SHOWN_CHARS)})")
            return _FINISH_REASONS[self._reason]
        return FinishReason.LENGTH if self._tokens >= self._max_tokens else FinishReason.STOP


async def _once(body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield body


def _tensors(text: str, sampling: Sampling, known: frozenset[str]) -> list[Any]:
    """Return the inputs of one request."""
    parameters = given(sampling)
    tensors = [_tensor("text_input", text.encode()), _tensor("sampling_parameters", orjson.dumps(parameters))]
    return tensors + [_tensor(name, value) for name, value in _OPTIONAL_INPUTS.items() if name in known]


def _tensor(name: str, value: bytes | bool) -> Any:
    import numpy as np  # noqa: PLC0415 - comes with Triton's client
    from tritonclient.grpc import InferInput  # noqa: PLC0415 - as above

    tensor = InferInput(name, [1], "BOOL" if isinstance(value, bool) else "BYTES")
    tensor.set_data_from_numpy(np.array([value], dtype=bool if isinstance(value, bool) else np.object_))
    return tensor


def _bytes(result: InferResult, name: str) -> bytes:
    values = result.as_numpy(name)
    return b"" if values is None else b"".join(values.reshape(-1).tolist())


def _code(error: BaseException) -> str:
    """Return the gRPC status by its bare name."""
    if isinstance(error, asyncio.CancelledError):
        return "CANCELLED"
    status = error.status() if hasattr(error, "status") else getattr(error, "code", lambda: "")()
    return str(status).rpartition(".")[2]


def _words(error: BaseException) -> str:
    text = error.message() if hasattr(error, "message") else str(error)
    return excerpt(" ".join(str(text).split()) or type(error).__name__, MAX_SHOWN_CHARS)
