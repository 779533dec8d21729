"""Models added, removed, pinned and renamed while servers run: kept in the store, the same on every gateway.

What was changed wins over the settings file, until it is changed again or `tokenwire models reset` forgets it all. The
default model is the exception: it is as the file says. Each change is one field of a hash, and is checked against all
that was changed before, on whichever gateway: two administrators can neither undo each other's by accident, nor give
one name to two models at once.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
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

MARK: Final = "mark"  # a field that is another one after each change
TOPIC: Final = "models"  # where gateways tell each other that something has changed
RETRY_S: Final = 1.0

Settings = dict[str, Any]  # as `model.add` has them
_FROM_FILE: Final[Settings] = {"": "the settings file's own"}


@dataclass(slots=True)
class Changed:
    """What the store's fields say.

    models: settings of what was added; None for what was removed. aliases: which model each means; '' where it is
    nobody's, although a model came with it. pins: whether. mark: of the last change; empty before the first one.
    """

    models: dict[str, Settings | None] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    pins: dict[str, bool] = field(default_factory=dict)
    mark: str = ""

    def is_unmoved(self, alias: str) -> bool:
        """Whether a model that was added with an alias has it for that: nothing else was ever said of it."""
        return alias not in self.aliases and self.models.get(alias) is None


_NOBODY: Final = ""
_Written = tuple[Mapping[str, object], tuple[str, ...]]  # fields to write, and names of those to drop
_KINDS: Final[dict[str, Any]] = {"models": Settings | None, "aliases": str, "pins": bool}


def read(fields: Mapping[str, bytes]) -> Changed:
    """Read the fields `models NAME`, `aliases NAME`, `pins NAME`; names hold no spaces. Others are left alone."""
    changed = Changed()
    for key, value in fields.items():
        if key == MARK:
            changed.mark = value.decode()
            continue
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
        names = pool.registry.models
        self._of_file = {alias: name for name in names for alias in pool.registry.aliases(name)}
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

        def check(changed: Changed) -> _Written:
            self._pool.check_new(name, config.aliases, config.base)  # still
            again = {f"aliases {alias}": name for alias in config.aliases if alias in changed.aliases}
            return {f"models {name}": settings, **again}, ()

        async with self._lock:
            await self._write(check)
            self._pool.add(model, config.aliases)
            self._known[name] = settings
        return model

    async def remove(self, name: str) -> None:
        """Serve a model no more, on any gateway; return when it is gone here.

        Raises UnknownModelError, RegistryError.
        """
        registry = self._pool.registry

        def check(changed: Changed) -> _Written:
            registry.check_removal(name)
            left = {*registry.aliases(name), *(alias for alias, owner in changed.aliases.items() if owner == _NOBODY)}
            # Else who came with it would have it again after a start.
            claimed = {alias for alias in left if self._came_with(alias, changed) - {name}}
            fields = {f"models {name}": None, **{f"aliases {alias}": _NOBODY for alias in claimed}}
            return fields, (f"pins {name}", *(f"aliases {alias}" for alias in left - claimed))

        async with self._lock:
            await self._write(check)
            self._known[name] = None
            leaving = self._remove(name)
        await asyncio.shield(leaving)

    async def alias(self, alias: str, name: str) -> None:
        """Give a model another name, or move that name to it. Raises RegistryError, UnknownModelError."""

        def check(_changed: Changed) -> _Written:
            return {f"aliases {alias}": self._pool.registry.check_alias(alias, name)}, ()

        async with self._lock:
            await self._write(check)
            self._pool.registry.alias(alias, name)

    async def pin(self, name: str, *, pinned: bool) -> Model:
        """Load and keep a model, or keep it no more. Raises UnknownModelError, RegistryError."""

        def check(_changed: Changed) -> _Written:
            return {f"pins {self._pool.check_pin(name, pinned=pinned).name}": pinned}, ()

        async with self._lock:
            await self._write(check)
            return self._pool.pin(name, pinned=pinned)

    def _came_with(self, alias: str, changed: Changed) -> set[str]:
        """Return the models, of the file and added ones, that would have an alias unless it had been moved."""
        found = {name for name, settings in changed.models.items() if settings and alias in settings.get("aliases", ())}
        owner = self._of_file.get(alias)
        return found | ({owner} if owner is not None and owner not in changed.models else set())

    async def _write(self, check: Callable[[Changed], _Written]) -> None:
        """Write what `check` returns, which raises where that cannot be: after all that others have changed before."""
        is_written = False
        while not is_written:
            changed = read(await self._store.model_changes())
            await self.apply(changed)
            fields, gone = check(changed)
            encoded = {key: msgspec.json.encode(value) for key, value in fields.items()}
            is_written = await self._store.put_model_changes(encoded, gone, seen=changed.mark, mark=uuid.uuid4().hex)
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
        bases before their adapters, and not before the last answers of what had its name have ended, (3) names,
        (4) pins. What cannot be is logged.
        """
        registry, is_leaving = self._pool.registry, self._pool.is_leaving
        for name in self._outdated(changed):  # 1
            with _told(f"model {name} stays as it is"):
                self._remove(name)
        added = [(name, settings) for name, settings in changed.models.items() if settings is not None]
        for name, settings in sorted(added, key=lambda item: item[1].get("base") is not None):
            if name not in registry.models and not is_leaving(name) and not is_leaving(settings.get("base")):  # 2
                with _told(f"model {name}, which was added while servers ran, is not served"):
                    config = ModelConfig.model_validate(settings)
                    aliases = [alias for alias in config.aliases if changed.is_unmoved(alias)]
                    self._pool.add(await self._pool.make_model(name, config), aliases)
        self._known = dict(changed.models)
        for alias, name in changed.aliases.items():  # 3
            if name == _NOBODY:
                registry.drop_alias(alias)
            elif alias not in registry.aliases(name) and not is_leaving(name):
                with _told(f"alias {alias} is not given"):
                    registry.alias(alias, name)
        for name, pinned in changed.pins.items():  # 4
            if name in registry.models and registry.models[name].needs.pinned is not pinned:
                with _told(f"model {name} is not {'pinned' if pinned else 'unpinned'}"):
                    self._pool.pin(name, pinned=pinned)

    def _outdated(self, changed: Changed) -> list[str]:
        """Return what was removed or is another one now, and adapters of that: they are made again with their base."""
        found = self._pool.models.values()
        outdated = {
            model.name
            for model in found
            if model.name in changed.models and self._known.get(model.name, _FROM_FILE) != changed.models[model.name]
        }
        outdated |= {model.name for model in found if model.base in outdated and model.name in changed.models}
        return sorted(outdated, key=lambda name: self._pool.models[name].base is None)

    def _remove(self, name: str) -> asyncio.Task[None]:
        """Take a model out: no turn finds it from now on, and what runs may end. Raises RegistryError."""
        task = asyncio.create_task(self._pool.see_off(self._pool.take_out(name)), name=f"remove {name}")
        self._removals.add(task)
        task.add_done_callback(self._removed)
        return task

    def _removed(self, task: asyncio.Task[None]) -> None:
        self._removals.discard(task)
        self._news.set()  # another one of that name may have waited for it


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
