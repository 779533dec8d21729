"""Every setting, its default, unit and bounds: long, as all of them are here. `config_loading` fills it from a file,
variables and flags.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

FILE_VARIABLE: Final = "TOKENWIRE_CONFIG"  # the file's path: read by the command line, not a setting itself

MIB = 1024 * 1024
DAY_S = 86_400
MIN_SECRET_CHARS: Final = 32  # as many bytes as HS256 wants (RFC 7518 section 3.2); longer ones serve HS384, HS512

DEFAULT_MODEL: Final = "smollm2-135m-instruct"  # served when no model is named; small enough for any machine
ECHO_MODEL: Final = "echo"  # the echo engine's, when no model is named

# Clients put the name into JSON and metrics labels, people put it on command lines: no spaces, no control characters.
MODEL_NAME: Final = re.compile(r"[!-~]{1,200}")
REDIS_SCHEMES: Final = ("redis://", "rediss://", "unix://")

Seconds = Annotated[float, Field(ge=0)]


class CrossFaultsError(ValueError):
    """Settings that are fine one by one and wrong together. faults: (dotted key, what is wrong and what to do)."""

    def __init__(self, faults: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{key}: {text}" for key, text in faults))
        self.faults = faults


def _check_redis_url(value: str | None) -> str | None:
    if value is not None and not value.startswith(REDIS_SCHEMES):
        raise ValueError("must start with redis://, rediss:// or unix://")
    return value


def _check_origin(value: str) -> str:
    scheme, separator, host = value.partition("://")
    if (value != "null" and not (scheme and separator and host)) or any(c in host for c in "/?#@ "):
        raise ValueError("must look like https://chat.example or http://host:port, without a path")
    return value.lower()


def _check_proxy(value: str) -> str:
    try:
        ipaddress.ip_network(value)
    except ValueError:
        raise ValueError("must be an address or a network, such as 10.0.0.0/8") from None
    return value


def _check_remote_url(value: str) -> str:
    if "@" in value:
        raise ValueError("must hold no password; set remote.api_key_env")
    return value


def _split_list(value: object) -> object:
    """Variables hold lists with commas between."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _expand_home(value: str) -> str:
    return str(Path(value).expanduser()) if value.startswith("~") else value


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`. Names other than localhost count as reachable."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


ScriptFile = Annotated[
    Path | None, BeforeValidator(lambda value: value or None), AfterValidator(lambda path: path and path.expanduser())
]


def _limit_faults(limits: EngineLimits) -> Iterator[tuple[str, str]]:
    """What does not fit together; limits: as a model gets them."""
    if limits.max_num_seqs and (limits.max_num_batched_tokens or math.inf) < limits.max_num_seqs:
        text = f"{limits.max_num_batched_tokens} is less than max_num_seqs ({limits.max_num_seqs}); raise it"
        yield "max_num_batched_tokens", text


def _is_private(host: str) -> bool:
    """Whether an address is of a network of one's own; a name with a dot is not known to be."""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return False


class Section(BaseModel):
    """A table of the config file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_switch(cls, value: object, field: ValidationInfo) -> object:
        """Refuse true where a number belongs: to pydantic it is a 1."""
        if isinstance(value, bool) and cls.model_fields[field.field_name or ""].annotation is not bool:
            raise ValueError("must not be true or false")
        return value


class EngineLimits(Section):
    """Engine arguments that `[vllm]` sets for every model and `[models.NAME]` for one.

    None leaves vLLM's own default (on the CPU: ours, see engine/vllm.py).
    """

    max_num_seqs: Annotated[int, Field(ge=1)] | None = None  # answers computed at once
    max_num_batched_tokens: Annotated[int, Field(ge=1)] | None = None  # tokens in one step of the engine
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None  # share of the GPU's memory
    long_prefill_token_threshold: Annotated[int, Field(ge=1)] | None = None  # of one prompt, in a step with others
    max_model_len: Annotated[int, Field(ge=16)] | None = None  # window: prompt and answer together, in tokens
    tensor_parallel_size: Annotated[int, Field(ge=1)] | None = None  # GPUs that one model is split over
    dtype: str | None = None
    max_loras: Annotated[int, Field(ge=1)] | None = None  # LoRA adapters that one step of the engine may use
    max_lora_rank: Literal[8, 16, 32, 64, 128, 256, 320, 512] | None = None  # of any adapter


class SamplingConfig(Section):
    """How a model's tokens are drawn where the client says nothing. None: as the model's own files say."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None  # 0 and -1: all tokens
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None


class RemoteConfig(Section):
    """A model on another server (`backend` "openai" or "triton"); `source` is its name there."""

    url: Annotated[str, AfterValidator(_check_remote_url)] = ""  # openai: https://host/v1; triton: host:port of gRPC
    api_key_env: str | None = None  # the environment variable with the key; None: no key is sent
    context_length: Annotated[int, Field(ge=16)] | None = None  # tokens; None: openai servers are asked
    max_concurrency: Annotated[int, Field(ge=1)] = 256  # answers asked for at once
    silence_timeout_s: Annotated[float, Field(gt=0)] = 120.0  # a stream that brings nothing this long is broken
    tokenizer: Annotated[str, AfterValidator(_expand_home)] | None = None  # folder; None: the server makes prompts
    model_control: bool = False  # triton: load the model at the start, unload it at the end


class ModelConfig(EngineLimits):
    """One `[models.NAME]`: source is a path, a hub id or the name of a model we know; the rest overrides `[vllm]`."""

    source: Annotated[str, Field(min_length=1), AfterValidator(_expand_home)]
    backend: Literal["vllm", "echo", "openai", "triton"] | None = None  # None: as `engine` says
    remote: RemoteConfig = RemoteConfig()
    runner: Literal["generate", "pooling"] = "generate"  # pooling: embeds, reranks or classifies, and makes no text
    base: str | None = None  # the model that `source`, the folder of a LoRA adapter, is for
    aliases: Annotated[tuple[str, ...], BeforeValidator(_split_list)] = ()  # further names of the model
    system_prompt: str | None = None  # instructions used where the client gives none
    tool_parser: Annotated[str, Field(min_length=1)] | None = None  # vLLM's name of what finds calls in the output
    reasoning_parser: Annotated[str, Field(min_length=1)] | None = None  # and of what finds thoughts
    requires: str = ""  # the right that a user needs to see and use it; empty: none
    memory_gib: Annotated[float, Field(gt=0)] | None = None  # on each of its devices; None: estimated
    asleep_gib: Annotated[float, Field(ge=0)] | None = None  # sleeps instead of being unloaded, and keeps that much
    pin: bool = False  # loaded at the start, never unloaded for another
    min_replicas: Annotated[int, Field(ge=0)] | None = None  # None: 1 without [devices], else 0: loaded when asked for
    max_replicas: Annotated[int, Field(ge=1)] = 1  # that traffic may bring
    idle_unload_s: Annotated[float, Field(gt=0)] | None = None  # unused this long: unloaded; None: when room is needed
    sampling: SamplingConfig = SamplingConfig()


class DeviceConfig(Section):
    """One `[devices.NAME]`: memory for models. On a GPU machine a GPU; on a CPU a budget."""

    memory_gib: Annotated[float, Field(gt=0)]
    gpu: Annotated[int, Field(ge=0)] | None = None  # its number, as nvidia-smi has it; None: no GPU


class PlacementConfig(Section):
    """How models share the devices."""

    # cost: all devices are one pool. latency: pinned models share their devices with no others.
    preset: Literal["cost", "latency"] = "cost"
    memory_threshold: Annotated[float, Field(gt=0, le=1)] = 0.8  # share of a device's memory that models may take
    swap_after_s: Seconds = 10.0  # a model that has no room waits this long before busy ones take no more work
    want_timeout_s: Annotated[float, Field(gt=0)] = 600.0  # clients wait this long for room
    scale_up_delay_s: Seconds = 2.0  # turns that wait longer bring one more replica
    scale_down_after_s: Seconds = 60.0  # where one replica less would have room to spare this long, one goes


class EchoConfig(Section):
    """The echo engine: answers with the last user message, word by word."""

    rate: Annotated[float, Field(ge=0)] = 0.0  # tokens per second and answer; 0: as fast as asked
    ttft_ms: Annotated[float, Field(ge=0)] = 0.0  # wait before the first token
    load_ms: Annotated[float, Field(ge=0)] = 0.0  # what loading takes
    context_length: Annotated[int, Field(ge=16)] = 8192  # tokens
    max_concurrency: Annotated[int, Field(ge=1)] = 4096  # answers at once
    script: ScriptFile = None  # a file with what it says: see server/engine/script.py


class VllmConfig(EngineLimits):
    """Engine arguments for every vLLM model."""

    cpu_kvcache_gib: Annotated[int, Field(ge=1)] = 1  # memory for attention keys and values on the CPU
    start_timeout_s: Annotated[float, Field(gt=0)] = 1800.0  # loading one model


class JwtConfig(Section):
    """Tokens of an identity provider. One of secret, public_key_file and jwks_url says what verifies them."""

    secret: SecretStr = SecretStr("")  # HS256, HS384, HS512
    public_key_file: Annotated[str, AfterValidator(_expand_home)] = ""  # PEM: RS, PS, ES and EdDSA
    jwks_url: str = ""  # the same, with keys that rotate
    issuer: str = ""  # empty: any
    audience: str = ""  # empty: any
    user_claim: Annotated[str, Field(min_length=1)] = "sub"
    tenant_claim: Annotated[str, Field(min_length=1)] = "tenant"
    rights_claim: Annotated[str, Field(min_length=1)] = "rights"
    limits_claim: Annotated[str, Field(min_length=1)] = "limits"
    leeway_s: Annotated[float, Field(ge=0, le=300)] = 10.0  # clocks may differ by this
    jwks_ttl_s: Annotated[float, Field(ge=10)] = 300.0


class AuthConfig(Section):
    """Who may connect. Without methods everybody is the same user."""

    methods: Annotated[tuple[Literal["keys", "jwt"], ...], BeforeValidator(_split_list)] = ()
    recheck_s: Annotated[float, Field(gt=0, le=30)] = 10.0  # a revoked key's open sockets are closed within this
    jwt: JwtConfig = JwtConfig()


Limit = Annotated[int, Field(ge=0)]  # 0: none


class AllowanceConfig(Section):
    """What a user, a tenant or a key may use, over all gateways together."""

    connections: Limit = 0  # open at once
    concurrent_responses: Limit = 0  # running or waiting at once
    turns_per_minute: Limit = 0  # in any 60 seconds
    input_tokens_per_day: Limit = 0  # from midnight to midnight, UTC
    output_tokens_per_day: Limit = 0
    input_chars: Limit = 0  # of one turn, with its instructions
    conversations: Limit = 0  # kept at once; of a user, not of a tenant
    conversation_turns: Limit = 0  # of one conversation


class QuotasConfig(Section):
    """Allowances; a key's own, or a token's, come on top."""

    user: AllowanceConfig = AllowanceConfig()
    tenant: AllowanceConfig = AllowanceConfig()


class StoreConfig(Section):
    """Conversations and journals in Redis."""

    key_prefix: Annotated[str, Field(min_length=1, max_length=64)] = "tw"
    retention_s: Annotated[int, Field(ge=60)] = 30 * DAY_S  # unused conversations go after that
    journal_ttl_s: Annotated[int, Field(ge=1)] = 600  # a finished answer can be replayed event by event this long
    command_id_ttl_s: Annotated[int, Field(ge=60)] = DAY_S  # how long a repeated `id` is recognised
    write_ahead: bool = True  # false: clients see text before Redis has it, and may see what a crash then loses
    tick_ms: Annotated[float, Field(ge=1, le=1000)] = 40.0  # journal flushes of running answers
    max_tick_ms: Annotated[float, Field(ge=1, le=10_000)] = 200.0  # under load ticks stretch up to this
    unavailable_timeout_s: Seconds = 10.0  # answers wait this long for Redis before they fail
    operation_timeout_s: Annotated[float, Field(gt=0)] = 5.0  # one Redis command
    redo_s: Seconds = 10.0  # acknowledged writes this young are kept, and written again to a Redis that has lost them
    max_connections: Annotated[int, Field(ge=2)] = 16


class LimitsConfig(Section):
    """What one client may cost."""

    max_frame_bytes: Annotated[int, Field(ge=1024)] = MIB  # larger frames close the socket with 1009
    max_connections: Annotated[int, Field(ge=1)] = 20_000
    max_lanes: Annotated[int, Field(ge=1)] = 32  # distinct stream_id values a connection
    max_in_flight: Annotated[int, Field(ge=1)] = 16  # responses running at once a connection
    max_waiting_per_lane: Annotated[int, Field(ge=1)] = 16  # commands queued behind a running one
    max_waiting_chars: Annotated[int, Field(ge=1)] = 4 * MIB  # characters of the turns queued on one connection
    max_waiting_per_conversation: Annotated[int, Field(ge=1)] = 16  # turns queued behind a running one
    max_queue: Annotated[int, Field(ge=0)] = 1024  # turns waiting for a place in the engine, per model
    max_local_responses: Annotated[int, Field(ge=1)] = 16  # `store:false` answers remembered per connection
    default_max_output_tokens: Annotated[int, Field(ge=1)] = 1024  # room kept for the answer by truncation auto
    orphan_grace_s: Seconds = 120.0  # a stored answer nobody listens to goes on this long
    send_timeout_s: Annotated[float, Field(gt=0)] = 30.0  # a send stuck this long closes the connection
    queued_repeat_s: Annotated[float, Field(gt=0)] = 15.0  # waiting clients hear from us at least this often
    ping_interval_s: Annotated[float, Field(gt=0)] = 20.0
    ping_timeout_s: Annotated[float, Field(gt=0)] = 20.0
    open_timeout_s: Annotated[float, Field(gt=0)] = 10.0  # handshake
    idle_timeout_s: Annotated[float, Field(gt=0)] = 86_400.0  # no frame from the client this long, and nothing running
    max_handshakes: Annotated[int, Field(ge=1)] = 4096  # connections whose request has not come, of all addresses
    # Of one address; private networks have no bounds, and behind `trusted_proxies` the clients' addresses count.
    max_handshakes_per_address: Annotated[int, Field(ge=1)] = 256
    max_connections_per_address: Annotated[int, Field(ge=1)] = 1024
    max_requests_per_minute_per_address: Annotated[int, Field(ge=1)] = 3000  # handshakes and plain HTTP
    sign_in_timeout_s: Annotated[float, Field(gt=0)] = 10.0  # the first frame, of who has not signed in before


class AdmissionConfig(Section):
    """Whose turn is next at a model's engine, and how many it gets at once."""

    adaptive: bool = True  # false: always as many as the engine takes
    min_concurrency: Annotated[int, Field(ge=1)] = 8  # turns that the engine gets at once however slow it is
    max_token_gap_ms: Annotated[float, Field(gt=0)] = 200.0  # fewer at once when tokens come slower: reading speed
    max_first_token_ms: Annotated[float, Field(gt=0)] = 2000.0  # and when first tokens take longer in the engine
    long_input_tokens: Annotated[int, Field(ge=1)] = 2048  # a turn that brings more is not urgent
    ageing_s: Annotated[float, Field(gt=0)] = 10.0  # a class without a place for so long becomes more urgent
    max_queue_tokens: Annotated[int, Field(ge=1)] = 4_000_000  # of all prompts that wait, per model


class TracingConfig(Section):
    """Traces of responses, for OpenTelemetry."""

    endpoint: Annotated[str, Field(pattern=r"^https?://")] | None = None  # OTLP over HTTP; None: no traces


Proxy = Annotated[str, AfterValidator(_check_proxy)]
Origin = Annotated[str, AfterValidator(_check_origin)]
RedisUrl = Annotated[str | None, BeforeValidator(lambda value: value or None), AfterValidator(_check_redis_url)]
DataDir = Annotated[Path, AfterValidator(Path.expanduser), Field(validate_default=True)]


class Config(Section):
    """The whole. Top-level keys are also flags; every key is also a variable (`TOKENWIRE_STORE__TICK_MS`).

    Once made, `models` is never empty and `default_model` is one of them, or an alias.
    """

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000  # 0 picks a free one
    engine: Literal["vllm", "echo"] = "vllm"
    models: dict[str, ModelConfig] = Field(default_factory=dict)  # empty: the small default model
    default_model: str = ""  # empty: the first of `models`
    redis_url: RedisUrl = None  # None: a private Valkey in data_dir
    data_dir: DataDir = Path("~/.local/share/tokenwire")
    allow_unauthenticated: bool = False  # serve on other than loopback without sign-in
    allowed_origins: Annotated[tuple[Origin, ...], BeforeValidator(_split_list)] = ()  # besides the server's own
    # Proxies before us, whose X-Forwarded-For says who the client is.
    trusted_proxies: Annotated[tuple[Proxy, ...], BeforeValidator(_split_list)] = ()
    drain_timeout_s: Seconds = 30.0  # SIGTERM: running answers may finish this long
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"
    devices: dict[str, DeviceConfig] = Field(default_factory=dict)  # empty: one without bounds, all models loaded
    placement: PlacementConfig = PlacementConfig()
    echo: EchoConfig = EchoConfig()
    vllm: VllmConfig = VllmConfig()
    engine_stall_timeout_s: Annotated[float, Field(gt=0)] = 120.0  # no token this long, while requests run: dead
    auth: AuthConfig = AuthConfig()
    quotas: QuotasConfig = QuotasConfig()
    store: StoreConfig = StoreConfig()
    limits: LimitsConfig = LimitsConfig()
    admission: AdmissionConfig = AdmissionConfig()
    tracing: TracingConfig = TracingConfig()

    @model_validator(mode="before")
    @classmethod
    def _fill_in_models(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        name = ECHO_MODEL if data.get("engine") == "echo" else DEFAULT_MODEL
        models = data.get("models") or {name: {"source": name}}
        first = next(iter(models)) if isinstance(models, Mapping) else ""
        return {**data, "models": models, "default_model": data.get("default_model") or first}

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        faults = [*self._reach_faults(), *self._auth_faults(), *self._model_faults(), *self._store_faults()]
        if faults:
            raise CrossFaultsError(faults)
        return self

    def _reach_faults(self) -> list[tuple[str, str]]:
        if is_loopback(self.host) or self.allow_unauthenticated or self.auth.methods:
            return []
        text = (
            f"{self.host!r} can be reached from other machines and nobody has to sign in; use 127.0.0.1, or set "
            "auth.methods (--auth keys), or allow_unauthenticated = true (--allow-unauthenticated) where something "
            "else guards the port"
        )
        return [("host", text)]

    def _auth_faults(self) -> list[tuple[str, str]]:
        jwt = self.auth.jwt
        given = [name for name in ("secret", "public_key_file", "jwks_url") if getattr(jwt, name)]
        if "jwt" not in self.auth.methods:
            text = "has no effect: auth.methods does not have 'jwt'"
            return [(f"auth.jwt.{name}", text) for name in given]
        if len(given) != 1:
            return [("auth.methods", "'jwt' needs one of auth.jwt.secret, auth.jwt.public_key_file, auth.jwt.jwks_url")]
        if 0 < len(jwt.secret) < MIN_SECRET_CHARS:
            return [("auth.jwt.secret", f"has {len(jwt.secret)} characters; at least {MIN_SECRET_CHARS} are needed")]
        url = urlsplit(jwt.jwks_url)
        if jwt.jwks_url and not (url.scheme == "https" or (url.scheme == "http" and is_loopback(url.hostname or ""))):
            return [("auth.jwt.jwks_url", "must start with https:// (http:// only on this machine)")]
        return []

    def _store_faults(self) -> Iterator[tuple[str, str]]:
        store = self.store
        if store.max_tick_ms < store.tick_ms:
            yield "store.max_tick_ms", f"{store.max_tick_ms:g} is less than tick_ms ({store.tick_ms:g}); raise it"

    def _model_faults(self) -> list[tuple[str, str]]:
        faults = [
            (f"models.{name}", "a model's name is 1 to 200 visible ASCII characters without spaces")
            for name in self.models
            if not MODEL_NAME.fullmatch(name)
        ]
        faults += [(f"models.{key}", text) for key, text in self._alias_faults()]
        faults += [(f"models.{key}", text) for key, text in self._base_faults()]
        for name, model in self.models.items():
            faults += [(f"models.{name}.{key}", text) for key, text in self.model_faults(model)]
        if self.default_model not in self.models and not self._is_alias(self.default_model):
            known = ", ".join(self.models)
            faults.append(("default_model", f"{self.default_model!r} is not one of the models ({known})"))
        return faults + [(f"vllm.{key}", text) for key, text in _limit_faults(self.vllm)]

    def backend_of(self, model: ModelConfig) -> str:
        """What serves this model."""
        return model.backend or self.engine

    def _base_faults(self) -> Iterator[tuple[str, str]]:
        for name, model in self.models.items():
            base = self.models.get(model.base or "")
            if model.base is None:
                continue
            if base is None:
                yield f"{name}.base", f"{model.base!r} is not one of the models ({', '.join(self.models)})"
            elif base.base is not None:
                yield f"{name}.base", f"{model.base!r} is an adapter itself; name the model below it"
            elif self.backend_of(base) != "vllm" or base.runner == "pooling":
                yield f"{name}.base", f"{model.base!r} takes no adapters: that needs vLLM, and a model that makes text"

    def model_faults(self, model: ModelConfig) -> Iterator[tuple[str, str]]:
        """What is wrong with one model's settings, whichever others there are."""
        yield from ((f"remote.{key}", text) for key, text in self._remote_faults(model))
        if model.runner == "pooling" and self.backend_of(model) != "vllm":
            yield "runner", "'pooling' needs the backend 'vllm'"
        if model.max_replicas < (model.min_replicas or 0):
            yield "max_replicas", f"{model.max_replicas} is less than min_replicas ({model.min_replicas})"
        own = model.model_dump(include=set(EngineLimits.model_fields), exclude_none=True)
        if own:
            yield from _limit_faults(self.vllm.model_copy(update=own))
        if model.base is None:
            return
        if self.backend_of(model) != "vllm" or model.runner == "pooling":
            yield "base", "an adapter needs the backend 'vllm' and makes text"
        if model.pin or model.min_replicas or model.max_replicas > 1:
            yield (
                "base",
                "an adapter has no replicas of its own: set pin, min_replicas, max_replicas of the base",
            )

    def _remote_faults(self, model: ModelConfig) -> Iterator[tuple[str, str]]:
        remote = model.remote
        match self.backend_of(model):
            case "openai" if not remote.url.startswith(("http://", "https://")):
                yield "url", "backend 'openai' needs a url such as http://host:8000/v1"
            case "triton" if not re.fullmatch(r"[^/]+:[0-9]+", remote.url):
                yield "url", "backend 'triton' needs host:port of Triton's gRPC service"
            case "triton" if not (remote.tokenizer and remote.context_length):
                yield "tokenizer", "backend 'triton' needs tokenizer and context_length: Triton tells neither"
            case "openai" if remote.api_key_env and remote.url.startswith("http://"):
                host = urlsplit(remote.url).hostname or ""
                if "." in host and not is_loopback(host) and not _is_private(host):
                    yield "url", "a key goes over https:// only; http:// is for this machine and private networks"

    def _is_alias(self, name: str) -> bool:
        return any(name in model.aliases for model in self.models.values())

    def _alias_faults(self) -> Iterator[tuple[str, str]]:
        owner: dict[str, str] = {}
        for name, model in self.models.items():
            for alias in model.aliases:
                if not MODEL_NAME.fullmatch(alias):
                    yield f"{name}.aliases", f"{alias!r} must be 1 to 200 visible ASCII characters without spaces"
                elif alias in self.models:
                    yield f"{name}.aliases", f"{alias!r} is a model itself; take another name"
                elif alias in owner:
                    yield f"{name}.aliases", f"{alias!r} is an alias of model {owner[alias]!r} already"
                owner.setdefault(alias, name)
