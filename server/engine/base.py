"""The seam between the business layer and inference: what every engine takes and gives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from protocol.events import NOTHING_WRITTEN, Logprob, Written
from protocol.items import Message
from protocol.options import PLAIN, Options
from protocol.output import Piece, PieceKind

LEAST_LOGPROB: Final = -9999.0  # in place of minus infinity, which JSON does not have; OpenAI's servers do the same


class EngineError(Exception):
    """The engine could not serve this request; others go on."""


class EngineDeadError(EngineError):
    """The engine process is gone or hangs; nothing will come from it until it is started again."""


class AnswerLostError(EngineError):
    """This answer broke off in the middle, and the engine goes on: the rest of it can be asked for."""


class BusyError(EngineError):
    """The engine has too much to do. retry_after_s: when it may take the request."""

    def __init__(self, text: str, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class EngineStartError(EngineError):
    """The engine cannot start with this model and these settings; the text is one line that says what to do."""


class RequestError(EngineError):
    """The engine does not take this request as it is; the text says why."""


class PromptError(EngineError):
    """The chat template refused these messages (for instance a system message in the wrong place)."""


class RefusedError(EngineError):
    """This model cannot do what the turn asks for. param: the field that asks for it."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def is_cancelled() -> bool:
    """Whether somebody wants the running task to end: else a CancelledError comes from what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class FinishReason(StrEnum):
    """Why an engine stopped by itself. An aborted request has none: its iterator is closed."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw tokens; None means the model's own default. Ranges were checked by `protocol.commands`.

    max_tokens: longest answer, in tokens; always set by the caller, which knows the window.
    stop: strings that end the answer and are never part of it.
    """

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()


def given(sampling: Sampling) -> dict[str, Any]:
    """Return what a request sets itself, by vLLM's names: for engines that are spoken to in JSON."""
    values = {field.name: getattr(sampling, field.name) for field in fields(sampling)}
    return {name: value for name, value in values.items() if value is not None and value is not False and value != ()}


@dataclass(frozen=True, slots=True)
class Prompt:
    """Messages made ready for one engine by `Engine.render`.

    token_ids: the tokens, where the engine knows them; empty for engines that take messages.
    token_count: length in tokens (an estimate where `token_ids` is empty).
    messages: what it was made from.
    continuation: the beginning of the answer that `extend` has put behind it.
    opening: tokens at the end that the template has put behind the last message, to open the answer.
    media: the images in it, in the engine's own form.
    """

    token_ids: Sequence[int]
    token_count: int
    messages: tuple[Message, ...] = ()
    continuation: Written = NOTHING_WRITTEN
    opening: int = 0
    media: Any = field(default=None, repr=False, compare=False)


class Sink(Protocol):
    """Where an answer's chunks go without waking anybody, which for many answers is most of what a token costs.

    It is called on the event loop.
    """

    def receive(self, chunk: Chunk) -> None:
        """Take a chunk, in their order; also while `hand_over` runs."""
        ...

    def wait(self, hand_over: Callable[[], None]) -> None:
        """Some tokens wait with the engine, until `hand_over` makes a chunk of them and of those that follow."""
        ...

    def heard(self) -> None:
        """More tokens wait: the engine makes progress."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One answer to make. `id` is unique among the engine's unfinished requests.

    cache_salt: only requests with the same one share what the engine remembers of prompts; empty for those that
    belong to no group. How long a prompt takes would tell others whether it was said before.
    priority: 0 is the most urgent. An engine that is short of room may put off those with higher numbers.
    options: what its output is to be and is read as.
    adapter: one that the engine has loaded, see `AdapterHost`.
    sink: where an engine may hand over chunks instead of yielding them, all but the last. None: yield them all.
    """

    id: str
    prompt: Prompt
    sampling: Sampling
    cache_salt: str = ""
    priority: int = 0
    options: Options = PLAIN
    adapter: str | None = None
    sink: Sink | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """How to run one model on vLLM; None means vLLM's default, or on a machine without a GPU ours.

    max_num_seqs: answers made at once (without a GPU: 64).
    max_num_batched_tokens: tokens worked on in one step.
    long_prefill_token_threshold: of them, for one prompt while others run (without a GPU: 256).
    gpu_memory_utilization: share of the GPU's memory to take, 0.0 to 1.0; not used without a GPU.
    max_model_len: prompt and answer together, in tokens; None means the model's own.
    tensor_parallel_size: GPUs that share the model.
    dtype: number format of the weights (without a GPU: float32).
    enforce_eager: do not compile the model: quicker start, slower answers (without a GPU: true).
    cpu_kvcache_gib: memory for the running answers without a GPU, in GiB (1).
    seed: of answers that bring none themselves.
    gpus: numbers of the GPUs that it may see; empty: all.
    tool_parser, reasoning_parser: what reads the model's output, by vLLM's names.
    can_sleep: vLLM's sleep mode, which costs some memory and needs a GPU to be of use.
    max_loras: LoRA adapters that one step may use; None: the engine takes none.
    max_lora_rank: of any adapter.
    extra: further arguments of vLLM's `EngineArgs`, by their Python names; they win over all others.
    """

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    tensor_parallel_size: int | None = None
    dtype: str | None = None
    enforce_eager: bool | None = None
    cpu_kvcache_gib: float | None = None
    seed: int | None = None
    gpus: tuple[int, ...] = ()
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    can_sleep: bool = False
    max_loras: int | None = None
    max_lora_rank: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """What came since the last chunk.

    text: new text, never half a character, never part of a stop string; may be empty.
    pieces: what a parser read in it, without markup; None where no parser reads the answer, whose text it is then.
    Where the prompt has a continuation, the first ones are those of the continuation, once more.
    token_ids: the tokens it stands for, where a parser reads the answer and the engine knows them.
    reasoning_tokens: those of its tokens that the model was thinking.
    logprobs: of its tokens, where the request asks for them. Text that is held back comes after those of its tokens.
    token_count: tokens it stands for (0 is allowed on the last one).
    finish_reason: set on the last chunk only.
    cached_tokens: prompt tokens served from the prefix cache; known from the first chunk on (a remote server tells it
        with the last one, or not at all).
    """

    text: str
    token_count: int
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    pieces: tuple[Piece, ...] | None = None
    token_ids: tuple[int, ...] = ()
    reasoning_tokens: int = 0
    logprobs: tuple[Logprob, ...] = ()

    @property
    def answer(self) -> str:
        """What the answer says in it: neither markup nor thoughts nor calls."""
        if self.pieces is None:
            return self.text
        return "".join(piece.text for piece in self.pieces if piece.kind is PieceKind.TEXT)


def logprob(token: str, value: float, likeliest: list[Logprob] | None = None) -> Logprob:
    """Return one token's. likeliest: those in its place; None for one of them."""
    data = list(token.encode("utf-8", "replace"))
    entry: Logprob = {"token": token, "bytes": data, "logprob": max(value, LEAST_LOGPROB)}
    return entry if likeliest is None else {**entry, "top_logprobs": likeliest}


def refuse_options(options: Options, *, has_logprobs: bool = False) -> None:
    """Refuse, for an engine that takes text only, what would change the answer if it were ignored.

    Raises RefusedError. Tools that may be called need not be.
    """
    if options.must_call:
        raise RefusedError("this model calls no functions; tool_choice must be 'auto' or 'none'", "tool_choice")
    if options.format is not None:
        raise RefusedError("this model keeps to no form; leave text.format out", "text.format.type")
    if options.top_logprobs is not None and not has_logprobs:
        raise RefusedError("this model does not tell how likely its words are; leave logprobs out", "top_logprobs")


# Called with plain words and, where it is known, how much is done (0.0 to 1.0).
ProgressCallback = Callable[[str, float | None], None]


@runtime_checkable
class Sleeper(Protocol):
    """An engine that can give its device's memory back and come back sooner than by a new start. It must be idle."""

    async def sleep(self) -> None:
        """Keep the weights in the host's memory, and nothing of what was said. Raises EngineError."""
        ...

    async def wake(self) -> None:
        """Be ready again. Raises EngineError."""
        ...


class Engine(Protocol):
    """One loaded model. It never knows who a client is.

    context_length: prompt and answer together, in tokens.
    max_concurrency: requests that it runs at once; more wait inside it, so callers admit no more than that.
    takes_images: whether messages may have images; where not, `render` must not get any.
    unfinished: requests not yet ended, including waiting ones.
    """

    context_length: int
    max_concurrency: int
    takes_images: bool

    @property
    def unfinished(self) -> int:
        """Requests not yet ended; 0 when the engine is gone."""
        ...

    async def start(self, progress: ProgressCallback) -> None:
        """Load the model and return when it can answer.

        Raises EngineStartError with a one-line text. Cancelling it leaves no process behind.
        """
        ...

    async def check(self, options: Options) -> None:
        """Return if this model can do all of that. Raises RefusedError naming the field, EngineDeadError."""
        ...

    async def render(self, messages: Sequence[Message], options: Options = PLAIN) -> Prompt:
        """Apply the chat template; text of messages can never become a control token.

        Long text is tokenised off the event loop. Raises PromptError where the template refuses, EngineDeadError.
        """
        ...

    async def extend(self, prompt: Prompt, written: Written) -> Prompt:
        """Return the prompt followed by the beginning of its answer, so that generation goes on from there.

        Raises EngineDeadError.
        """
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Yield the answer as it is made; closing the iterator aborts the request at once.

        What the request's sink takes is not yielded; chunks keep their order between the two ways. A consumer that
        comes back late gets what has gathered as one chunk. Use it in `contextlib.aclosing`.

        Raises EngineError for this request alone, EngineDeadError when the whole engine is gone.
        """
        ...

    async def check_health(self) -> None:
        """Return if the engine can make progress; raise EngineDeadError if not."""
        ...

    def close(self) -> None:
        """Begin to stop: idempotent, does not wait, ends running requests with EngineDeadError."""
        ...

    async def wait_closed(self) -> None:
        """Return when every process and file of the engine is gone."""
        ...


@runtime_checkable
class AdapterHost(Engine, Protocol):
    """An engine that answers with LoRA adapters on its model, too."""

    async def load_adapter(self, name: str, folder: str) -> None:
        """Make an adapter known; harmless when it is.

        Raises EngineStartError where it does not fit, EngineDeadError.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter; harmless when it is not known."""
        ...


@dataclass(frozen=True, slots=True)
class PooledText:
    """A text, or a pair of them, made ready for a pooling model.

    second_from: where the second text's tokens begin, for models that are told; None for one text.
    """

    token_ids: Sequence[int]
    second_from: int | None = None


@runtime_checkable
class PoolingEngine(Engine, Protocol):
    """An engine that makes one vector of a text, and no text.

    task: what the vector is: "embed", or "classify" (one number for each label; of a single one, a pair's score).
    labels: of a classifier.
    """

    task: str
    labels: tuple[str, ...]

    async def encode(self, text: str, second: str | None = None) -> PooledText:
        """Tokenise; text is only ever text. Raises EngineDeadError."""
        ...

    async def pool(self, request_id: str, text: PooledText, dimensions: int | None = None) -> list[float]:
        """Return the vector. Raises RequestError, EngineError, EngineDeadError; cancelling it aborts the request."""
        ...
