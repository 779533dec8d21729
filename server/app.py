"""The composition root: start, serve, drain, close. It alone names concrete engines and the store, hence its length."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

import uvloop

from server.access.access import Access
from server.access.auth import User
from server.access.limits import Limits
from server.access.sign_in import SignIn
from server.chat.runtime import Runtime
from server.chat.service import Chat
from server.chat.takeover import Takeover
from server.config import Config, EngineLimits, ModelConfig, RemoteConfig
from server.engine.base import EngineStartError, VllmSettings
from server.engine.echo import EchoEngine
from server.engine.lora import DEFAULT_RANK, read_adapter, room_for
from server.engine.openai import OpenAIEngine, OpenAISettings
from server.engine.parsing import Parsers
from server.engine.triton import TritonEngine, TritonSettings
from server.engine.vllm import VllmEngine
from server.engine.vllm_pooling import VllmPoolingEngine
from server.errors import StartError
from server.gateway.connection import Connection
from server.gateway.http import HttpRoutes
from server.gateway.listener import Listener
from server.gateway.sockets import GatewayConnection
from server.gateway.text_mode import TextConnection
from server.models import changes
from server.models.adapter import AdapterEngine
from server.models.devices import device_list, model_needs, on_devices, placement_policy, scaling_policy
from server.models.errors import ModelFailedError, ModelSourceError, RegistryError
from server.models.model import Model, ModelState
from server.models.placement import fits
from server.models.pool import EngineFactory, Pool
from server.models.sources import resolve
from server.observe import log
from server.observe.metrics import Metrics
from server.observe.traces import Traces
from server.store.base import StoreError
from server.store.bus import Bus
from server.store.embedded import EmbeddedValkey
from server.store.journal import Journal
from server.store.redis import RedisStore

logger = logging.getLogger(__name__)

VALKEY_RESTARTS: Final = 5  # unexpected ends of our own Valkey in a row before we give up
VALKEY_STABLE_S: Final = 60.0  # one that lived this long begins a new row
EXIT_FAILED: Final = 1
ONE_SIGNAL_S: Final = 0.25  # make passes on what its whole process group got, and we are in it: one signal, not two
ADAPTERS_AT_ONCE: Final = 4  # in one step of an engine, where nobody says more: each costs memory for its rank
# New objects that bring a look for garbage in cycles. Ours are freed without it; at Python's 700 every second handshake
# would bring one.
COLLECT_AFTER: Final = 20_000


def run(config: Config) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP (its terminal was closed); return the exit code. Raises StartError."""
    log.configure(config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(App(config).run())


def use_store(config: Config, work: Callable[[RedisStore], Awaitable[int]]) -> int:
    """Do some work in the store that a server with these settings uses or would use; return its exit code.

    A private Valkey that no server runs is started for it. Raises StartError.
    """
    return asyncio.run(_use_store(config, work))


async def _use_store(config: Config, work: Callable[[RedisStore], Awaitable[int]]) -> int:
    valkey = EmbeddedValkey(config.data_dir)
    try:
        url = config.redis_url or await valkey.running_url() or await valkey.start()
        store = RedisStore(url, config.store, config.limits)
        try:
            await store.connect()
            return await work(store)
        finally:
            await store.close()
    except (StoreError, ValueError) as error:
        raise StartError(str(error)) from None
    finally:
        await valkey.stop()


class StoppedError(Exception):
    """The server was told to stop before it was up."""


class App:
    """One gateway process."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._metrics = Metrics()
        self._stop = asyncio.Event()
        self._signalled_at = float("-inf")  # loop time
        self._exit_code = 0
        self._is_frozen = False
        self._connections: set[Connection] = set()
        self._chat: Chat | None = None
        self._takeover: Takeover | None = None
        self._sign_in = _make_sign_in(config)  # with a store once there is one
        self._pool = Pool((), "", config.engine_stall_timeout_s)

    async def run(self) -> int:
        """Start, serve, drain, close, in that order; what was opened is closed however it ends."""
        self._watch_signals()
        try:
            async with AsyncExitStack() as stack:
                await self._serve(stack)
            logger.info("stopped")
        except StoppedError:
            logger.info("stopped while a model was being fetched")
        return self._exit_code

    async def _serve(self, stack: AsyncExitStack) -> None:
        config, metrics = self._config, self._metrics
        # 1. The store: nothing works without it.
        store = await self._open_store(stack)
        # 2. The models: sources are found before the port is taken, so that a typo costs nobody anything.
        changed = await self._read_changes(store)
        self._pool = pool = await self._make_pool(changed)
        metrics.watch(pool)
        # 3. What answers turns.
        journal = Journal(store, metrics, config.store)
        relay = Journal(store, metrics, config.store)
        for ticking in (journal, relay):
            ticking.start()
            stack.push_async_callback(ticking.close)
        bus = Bus(store.url, config.store)
        bus.start()
        stack.push_async_callback(bus.close)
        access = Access(_make_sign_in(config, store), Limits(config.quotas, store))
        self._sign_in = access.sign_in
        gateway_id = f"gw_{uuid.uuid4().hex}"
        traces = self._open_traces(stack)
        runtime = Runtime(config, store, journal, bus, metrics, gateway_id, relay, access, traces)
        stack.push_async_callback(runtime.close)
        self._chat = chat = Chat(runtime, pool)
        await bus.subscribe(f"gateway:{runtime.gateway_id}", chat.control)
        await bus.subscribe(changes.TOPIC, chat.model_changes.heard)
        await chat.model_changes.apply(changed)
        self._takeover = takeover = Takeover(runtime, chat.adopt, chat.has_model)
        await self._first_beat(takeover)
        # 4. The port: clients may come while models load, and are told how far that is.
        listener = Listener(
            config,
            HttpRoutes(chat.reads, self, metrics),
            {"/v1/responses": self._talk, "/chat": self._chat_in_text},
            metrics,
            access,
        )
        url = await listener.start()
        stack.push_async_callback(listener.wait_closed)
        logger.info("listening", extra={"url": url})
        # 5. The engines.
        stack.push_async_callback(self._close_pool, pool)
        pool.on_loaded, pool.on_unloaded = self._loaded, self._unloaded
        pool.start(config.models)
        self._keep(runtime, access.sign_in.run(), "sign-in")
        self._keep(runtime, access.limits.run(), "limits")
        self._keep(runtime, chat.model_changes.run(), "changes of the models")
        self._keep(runtime, journal.wait(), "journal")
        self._keep(runtime, relay.wait(), "relay")
        beat = self._keep(runtime, takeover.run(), "takeover")
        await self._until_ready(pool, url)
        # 6. Serve until told to stop, then let running answers end.
        await self._stop.wait()
        logger.info("draining", extra={"running": chat.running, "timeout_s": config.drain_timeout_s})
        listener.drain()
        takeover.stop_adopting()
        for connection in tuple(self._connections):
            runtime.spawn(connection.retire(), "retire a connection")
        await chat.drain(config.drain_timeout_s)
        beat.cancel()
        await asyncio.wait([beat])
        await takeover.retire()

    async def _first_beat(self, takeover: Takeover) -> None:
        try:
            await takeover.beat()
        except StoreError as error:
            raise StartError(str(error)) from None

    def _open_traces(self, stack: AsyncExitStack) -> Traces | None:
        endpoint = self._config.tracing.endpoint
        if endpoint is None:
            return None
        traces = Traces(endpoint)
        stack.push_async_callback(asyncio.to_thread, traces.close)
        return traces

    async def _open_store(self, stack: AsyncExitStack) -> RedisStore:
        url = self._config.redis_url
        if url is None:
            url = await self._start_valkey(stack)
        try:
            store = RedisStore(url, self._config.store, self._config.limits)
            stack.push_async_callback(store.close)
            await store.connect()
        except (StoreError, ValueError) as error:
            raise StartError(str(error)) from None
        return store

    async def _start_valkey(self, stack: AsyncExitStack) -> str:
        valkey = EmbeddedValkey(self._config.data_dir)
        try:
            url = await valkey.start()
        except StoreError as error:
            raise StartError(str(error)) from None
        stack.push_async_callback(valkey.stop)
        keeper = asyncio.create_task(self._keep_valkey(valkey), name="valkey")

        async def stop_keeping() -> None:
            keeper.cancel()
            await asyncio.wait([keeper])

        stack.push_async_callback(stop_keeping)
        return url

    async def _keep_valkey(self, valkey: EmbeddedValkey) -> None:
        """Start our own Valkey again when it ends by itself."""
        ends = 0
        while ends < VALKEY_RESTARTS:
            began = time.monotonic()
            code = await valkey.wait()
            ends = ends + 1 if time.monotonic() - began < VALKEY_STABLE_S else 1
            logger.error("the embedded Valkey ended; starting it again", extra={"code": code})
            await asyncio.sleep(ends - 1)
            try:
                await valkey.start()
            except StoreError as error:
                logger.error("%s", error)
                break
        self._give_up("the embedded Valkey does not stay up")

    async def _read_changes(self, store: RedisStore) -> changes.Changed:
        try:
            return changes.read(await store.model_changes())
        except StoreError as error:
            raise StartError(str(error)) from None

    async def _make_pool(self, changed: changes.Changed) -> Pool:
        """Make the settings file's models, but for those that were changed while servers ran."""
        config = self._config
        devices = device_list(config)
        policy = placement_policy(config)
        pool = Pool(
            (),
            config.default_model or next(iter(config.models)),
            config.engine_stall_timeout_s,
            devices=devices,
            policy=policy,
            scaling_policy=scaling_policy(config),
            want_timeout_s=config.placement.want_timeout_s,
        )
        for name, settings in sorted(config.models.items(), key=lambda item: item[1].base is not None):  # bases first
            if name not in changed.models or name == pool.default:
                try:
                    pool.add(await self._make_model(name, settings), settings.aliases)
                except RegistryError as error:  # what was changed while servers ran is in its way
                    raise StartError(f"models.{name}: {error}; or forget changes: tokenwire models reset") from None
        pool.make_model = self._make_model
        return pool

    async def _make_model(self, name: str, settings: ModelConfig) -> Model:
        """Raises StartError where its source is not there, or no device could hold it."""
        config = self._config
        for key, text in config.model_faults(settings):  # one that is added later was not checked with the others
            raise StartError(f"models.{name}.{key}: {text}")
        source = await self._source(name, settings)
        needs = model_needs(config, settings, source)
        reason = fits(needs, device_list(config), placement_policy(config))
        if reason is not None:
            raise StartError(f"models.{name}: does not fit: {reason}")
        return Model(
            name=name,
            make_engine=self._engine_factory(name, settings, source, needs.memory),
            max_queue=config.limits.max_queue,
            created_at=int(time.time()),
            requires=settings.requires,
            system_prompt=settings.system_prompt,
            start_timeout_s=None if settings.base is not None else config.vllm.start_timeout_s,
            is_elsewhere=settings.base is not None or config.backend_of(settings) in {"openai", "triton"},
            base=settings.base,
            metrics=self._metrics.for_model(name),
            admission_config=config.admission,
            needs=needs,
            sampling=settings.sampling.model_dump(exclude_none=True),
        )

    def _engine_factory(self, name: str, model: ModelConfig, source: str, memory: float) -> EngineFactory:
        config = self._config
        match config.backend_of(model):
            case "echo":
                echo = config.echo
                return lambda _devices: EchoEngine(
                    name,
                    rate=echo.rate,
                    ttft_ms=echo.ttft_ms,
                    load_ms=echo.load_ms,
                    context_length=echo.context_length,
                    max_concurrency=echo.max_concurrency,
                    script=echo.script,
                    parsers=Parsers(model.tool_parser, model.reasoning_parser),
                )
            case "openai":
                return lambda _devices: OpenAIEngine(name, _openai_settings(source, model.remote))
            case "triton":
                return lambda _devices: TritonEngine(name, _triton_settings(source, model.remote))
        if model.base is not None:
            base = model.base
            return lambda _devices: AdapterEngine(name, self._pool.models[base], source)
        settings = replace(_vllm_settings(config, name, model), can_sleep=model.asleep_gib is not None)
        kind = VllmPoolingEngine if model.runner == "pooling" else VllmEngine
        return lambda devices: kind(name, source, on_devices(settings, devices, memory))

    async def _source(self, name: str, model: ModelConfig) -> str:
        """Return what the engine loads, fetched and converted where that is needed."""
        if self._config.backend_of(model) != "vllm":
            return model.source
        if model.base is not None:
            _adapter_rank(name, model)
            return model.source

        def progress(text: str) -> None:
            if self._stop.is_set():
                raise StoppedError
            logger.info("%s", text)

        try:
            return await asyncio.to_thread(resolve, model.source, progress=progress)
        except ModelSourceError as error:
            raise StartError(str(error)) from None

    async def _until_ready(self, pool: Pool, url: str) -> None:
        """Load the models; print the ready line. Return early when told to stop."""
        loading = asyncio.create_task(pool.wait_ready(), name="loading")
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        await asyncio.wait([loading, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not loading.done():
            loading.cancel()
            return
        try:
            loading.result()
        except ModelFailedError as error:
            raise StartError(str(error)) from None
        gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])
        ready = {
            "event": "ready",
            "url": url,
            "models": list(pool.models),
            "engine": self._config.engine,
            "pid": os.getpid(),
        }
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()
        watcher = asyncio.create_task(pool.wait_failed(), name="models")
        watcher.add_done_callback(
            lambda task: None if task.cancelled() else self._give_up("a model cannot be started again")
        )

    def _loaded(self) -> None:
        """Spare Python's collector what the first engine brings.

        vLLM brings 600,000 objects to stay. The collector would look through all of them again and again, when a frame
        of many brackets is read as well, and all sockets would wait for half a second.
        """
        if not self._is_frozen and "vllm" in map(self._config.backend_of, self._config.models.values()):
            self._is_frozen = True
            gc.collect()
            gc.freeze()

    def _unloaded(self) -> None:
        """Give an engine's memory back.

        vLLM leaves 500 objects in cycles, with 25 MB behind them; Python's collector, which counts objects, would come
        by too late. What was frozen is not looked through: it takes milliseconds.
        """
        if self._is_frozen:
            gc.collect()

    async def _close_pool(self, pool: Pool) -> None:
        pool.close()
        await pool.wait_closed()

    # What /readyz asks

    def reasons(self) -> list[str]:
        """Return why new work is not welcome; empty when it is."""
        reasons = [
            f"model {model.name}: {model.detail}"
            for model in self._pool.models.values()
            if model.needs.floor and model.state is not ModelState.READY
        ]
        if self._stop.is_set():
            reasons.append("draining")
        if self._takeover is None or not self._takeover.store_is_up:
            reasons.append("the store does not answer")
        return reasons

    # Sockets

    async def _talk(self, websocket: GatewayConnection, user: User) -> None:
        assert self._chat is not None
        connection = Connection(websocket, user, self._chat, self._config, self._metrics)
        self._connections.add(connection)
        try:
            with websocket.busy_when(connection.is_busy), self._sign_in.watched(connection):
                await connection.run()
        finally:
            self._connections.discard(connection)

    async def _chat_in_text(self, websocket: GatewayConnection, user: User) -> None:
        assert self._chat is not None
        connection = TextConnection(websocket, user, self._chat, self._config)
        with websocket.busy_when(connection.is_busy), self._sign_in.watched(connection):
            await connection.run()

    # Ends

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup has it ignored
                loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        """Drain at the first signal, be gone at the second; engines and Valkey end with this process."""
        now = asyncio.get_running_loop().time()
        if now < self._signalled_at + ONE_SIGNAL_S:
            return
        if self._stop.is_set():
            logger.warning("second signal: stopping at once")
            os._exit(EXIT_FAILED)
        self._signalled_at = now
        self._stop.set()

    def _give_up(self, why: str) -> None:
        if not self._stop.is_set():
            logger.critical("stopping: %s", why)
            self._exit_code = EXIT_FAILED
            self._stop.set()

    def _keep(self, runtime: Runtime, work: object, name: str) -> asyncio.Task[None]:
        """Run a task that must live as long as the server; its end ends the server."""
        task = runtime.spawn(work, name)  # type: ignore[arg-type]
        task.add_done_callback(lambda task: None if task.cancelled() else self._give_up(f"{name} ended"))
        return task


def _make_sign_in(config: Config, store: RedisStore | None = None) -> SignIn:
    try:
        return SignIn(config, store)
    except (OSError, ValueError) as error:
        raise StartError(f"auth.jwt.public_key_file cannot be used: {error}") from None


def _vllm_settings(config: Config, name: str, model: ModelConfig) -> VllmSettings:
    """Return a model's engine arguments: its own, else those for all models, else what its adapters need."""
    given = {key: getattr(model, key) or getattr(config.vllm, key) for key in EngineLimits.model_fields}
    ranks = [_adapter_rank(key, other) for key, other in config.models.items() if other.base == name]
    if ranks:
        given["max_loras"] = given["max_loras"] or min(len(ranks), ADAPTERS_AT_ONCE)
    if given["max_loras"]:
        given["max_lora_rank"] = given["max_lora_rank"] or room_for(max(ranks, default=DEFAULT_RANK))
    return VllmSettings(
        **given,
        cpu_kvcache_gib=config.vllm.cpu_kvcache_gib,
        tool_parser=model.tool_parser,
        reasoning_parser=model.reasoning_parser,
    )


def _adapter_rank(name: str, model: ModelConfig) -> int:
    try:
        return read_adapter(model.source).rank
    except EngineStartError as error:
        raise StartError(f"models.{name}.source: {error}") from None


def _openai_settings(model: str, remote: RemoteConfig) -> OpenAISettings:
    return OpenAISettings(
        url=remote.url,
        model=model,
        api_key_env=remote.api_key_env,
        context_length=remote.context_length,
        max_concurrency=remote.max_concurrency,
        silence_timeout_s=remote.silence_timeout_s,
        tokenizer=remote.tokenizer,
    )


def _triton_settings(model: str, remote: RemoteConfig) -> TritonSettings:
    assert remote.tokenizer is not None  # the configuration was checked
    assert remote.context_length is not None
    return TritonSettings(
        address=remote.url,
        model=model,
        tokenizer=remote.tokenizer,
        context_length=remote.context_length,
        max_concurrency=remote.max_concurrency,
        silence_timeout_s=remote.silence_timeout_s,
        model_control=remote.model_control,
    )
