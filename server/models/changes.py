"""Models added, removed, pinned and renamed while servers run: kept in the store, the same on every gateway.

What was changed wins over the settings file, until it is changed again or `tokenwire models reset` forgets it all. The
default model is the exception: it is as the file says. Each change is one field of a hash, so two administrators cannot
undo each other's by accident; of two changes of one thing the later one stands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from server.config import ModelConfig
from server.errors import StartError
from server.models.errors import ModelsError
from server.models.model import Model
from server.models.pool import Pool
from server.store.base import Store, StoreUnavailableError
from server.store.bus import Bus

logger = logging.getLogger(__name__)

TOPIC: Final = "models"  # where gateways tell each other that something has changed
RETRY_S: Final = 1.0

Settings = dict[str, Any]  # as `model.add` has them
_FROM_FILE: Final[Settings] = {"": "the settings file's own"}


@dataclass(slots=True)
class Changed:
    """What the store's fields say.

    models: settings of what was added; None for what was removed. aliases: which model each means. pins: whether.
    """

    models: dict[str, Settings | None] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    pins: dict[str, bool] = field(default_factory=dict)


_KINDS: Final[dict[str, Any]] = {"models": Settings | None, "aliases": str, "pins": bool}


def read(fields: Mapping[str, bytes]) -> Changed:
    """Read the fields `models NAME`, `aliases NAME`, `pins NAME`; names hold no spaces. Others are left alone."""
    changed = Changed()
    for key, value in fields.items():
        kind, _, name = key.partition(" ")
        try:
            getattr(changed, kind)[name] = msgspec.json.decode(value, type=_KINDS[kind])
        except (KeyError, msgspec.DecodeError):
            logger.warning("a change of the models is not understood: %s; a newer version's?", key)
    return changed


class Changes:
    """Apply what was changed, here or on another gateway, to this gateway's models; write what is changed here."""

    def __init__(self, store: Store, bus: Bus, pool: Pool) -> None:
        self._store = store
        self._bus = bus
        self._pool = pool
        self._known: dict[str, Settings | None] = {}  # what was applied here
        self._lock = asyncio.Lock()  # one change at a time
        self._news = asyncio.Event()
        self._news.set()  # what was changed between the reading at the start and the subscription
        self._removals: set[asyncio.Task[None]] = set()

    # What administrators ask for: checked first, then written, then done.

    async def add(self, name: str, settings: Settings) -> Model:
        """Serve one more model, on all gateways. Raises RegistryError, StartError, ModelSourceError."""
        config = ModelConfig.model_validate(settings)
        self._pool.check_new(name, config.aliases, config.base)
        model = await self._pool.make_model(name, config)
        async with self._lock:
            self._pool.check_new(name, config.aliases, config.base)  # still
            await self._write({f"models {name}": settings})
            self._pool.add(model, config.aliases)
            self._known[name] = settings
        return model

    async def remove(self, name: str) -> None:
        """Serve a model no more, on any gateway; return when it is gone here.

        Raises UnknownModelError, RegistryError.
        """
        async with self._lock:
            self._pool.registry.check_removal(name)
            aliases = [f"aliases {alias}" for alias in self._pool.registry.aliases(name)]
            await self._write({f"models {name}": None}, (f"pins {name}", *aliases))
            self._known[name] = None
            leaving = self._remove(name)
        await asyncio.shield(leaving)

    async def alias(self, alias: str, name: str) -> None:
        """Give a model another name, or move that name to it. Raises RegistryError, UnknownModelError."""
        async with self._lock:
            target = self._pool.registry.check_alias(alias, name)
            await self._write({f"aliases {alias}": target})
            self._pool.registry.alias(alias, target)

    async def pin(self, name: str, *, pinned: bool) -> Model:
        """Load and keep a model, or keep it no more. Raises UnknownModelError, RegistryError."""
        async with self._lock:
            model = self._pool.check_pin(name, pinned=pinned)
            await self._write({f"pins {model.name}": pinned})
            return self._pool.pin(model.name, pinned=pinned)

    async def _write(self, fields: Mapping[str, object], gone: tuple[str, ...] = ()) -> None:
        await self._store.put_model_changes({key: msgspec.json.encode(value) for key, value in fields.items()}, gone)
        self._bus.publish(TOPIC, {})

    # What others have changed, or had

    def heard(self, _message: dict[str, Any]) -> None:
        """Another gateway has changed something, or may have."""
        self._news.set()

    async def run(self) -> None:
        """Follow the other gateways until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                async with self._lock:
                    await self.apply(read(await self._store.model_changes()))
            except StoreUnavailableError:
                self._news.set()
                await asyncio.sleep(RETRY_S)

    async def apply(self, changed: Changed) -> None:
        """Make this gateway's models those: (1) what was removed or is another one now goes, (2) what is missing comes,
        bases before their adapters, (3) names, (4) pins. What cannot be is logged.
        """
        registry = self._pool.registry
        for name in [model.name for model in sorted(registry.models.values(), key=lambda model: model.base is None)]:
            if name in changed.models and self._known.get(name, _FROM_FILE) != changed.models[name]:  # 1
                with _told(f"model {name} stays as it is"):
                    leaving = self._remove(name)
                    if changed.models[name] is not None:
                        await asyncio.shield(leaving)
        added = [(name, settings) for name, settings in changed.models.items() if settings is not None]
        for name, settings in sorted(added, key=lambda item: item[1].get("base") is not None):
            if name not in registry.models:  # 2
                with _told(f"model {name}, which was added while servers ran, is not served"):
                    config = ModelConfig.model_validate(settings)
                    self._pool.add(await self._pool.make_model(name, config), config.aliases)
        self._known = dict(changed.models)
        for alias, name in changed.aliases.items():  # 3
            if alias not in registry.aliases(name):
                with _told(f"alias {alias} is not given"):
                    registry.alias(alias, name)
        for name, pinned in changed.pins.items():  # 4
            if name in registry.models and registry.models[name].needs.pinned is not pinned:
                with _told(f"model {name} is not {'pinned' if pinned else 'unpinned'}"):
                    self._pool.pin(name, pinned=pinned)

    def _remove(self, name: str) -> asyncio.Task[None]:
        """Take a model out: no turn finds it from now on, and what runs may end. Raises RegistryError."""
        task = asyncio.create_task(self._pool.see_off(self._pool.take_out(name)), name=f"remove {name}")
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)
        return task


class _told:  # noqa: N801 a context manager, used as a function
    """Log what cannot be applied, and go on: the settings are a person's, and the others hold."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, ModelsError | StartError | ValidationError):
            return False
        logger.warning("%s: %s", self._what, " ".join(str(error).split()))
        return True
