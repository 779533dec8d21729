"""Admin commands: models loaded, unloaded, pinned, added, removed and renamed while the server runs.

What is added, removed, pinned or renamed holds for all gateways on one store and over restarts; the settings file stays
as it is. Loading and unloading is this process's own. What takes long is answered when it is done, and does not keep
the connection from its other commands meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import ValidationError

from protocol.commands import (
    Command,
    ModelAdd,
    ModelAlias,
    ModelCommand,
    ModelLoad,
    ModelPin,
    ModelRemove,
    ModelUnload,
)
from protocol.errors import ProtocolError, excerpt
from protocol.events import answer, error_event
from server.access.auth import Right
from server.chat.client import Client
from server.chat.errors import translate
from server.chat.reads import wire_model
from server.chat.runtime import Runtime
from server.config import MODEL_NAME, ModelConfig
from server.errors import StartError
from server.models.changes import Changes
from server.models.errors import ModelSourceError
from server.models.model import Model
from server.models.pool import Pool

Work = Callable[[Any], Awaitable[dict[str, Any]]]


class ModelAdmin:
    """handlers: one for each command, by its type."""

    def __init__(self, runtime: Runtime, pool: Pool, changes: Changes) -> None:
        self._runtime = runtime
        self._pool = pool
        self._changes = changes
        self._work: dict[type[Command], tuple[str, Work]] = {
            ModelLoad: ("model.loaded", self._load),
            ModelUnload: ("model.unloaded", self._unload),
            ModelPin: ("model.pinned", self._pin),
            ModelAdd: ("model.added", self._add),
            ModelRemove: ("model.removed", self._remove),
            ModelAlias: ("model.aliased", self._alias),
        }

    @property
    def handlers(self) -> dict[type[Command], Callable[[Client, Any], Awaitable[None]]]:
        return dict.fromkeys(self._work, self.handle)

    async def handle(self, client: Client, command: ModelCommand) -> None:
        """Begin what the command asks for. Raises ProtocolError where the client has no right to."""
        client.user.require(Right.ADMIN)
        self._runtime.spawn(self._answer(client, command), f"{command.TYPE} {command.model}")

    async def _answer(self, client: Client, command: ModelCommand) -> None:
        kind, work = self._work[type(command)]
        try:
            client.send(answer(kind, command, model=await work(command)))
        except Exception as error:  # noqa: BLE001 translated for the wire; what nobody expected is logged there
            fault = translate(error)
            self._runtime.metrics.protocol_error(fault.code)
            client.send(error_event(fault, command))

    def _wire(self, model: Model) -> dict[str, Any]:
        return wire_model(model, self._pool.registry)

    async def _load(self, command: ModelLoad) -> dict[str, Any]:
        return self._wire(await self._pool.load(command.model))

    async def _unload(self, command: ModelUnload) -> dict[str, Any]:
        return self._wire(await self._pool.unload(command.model))

    async def _pin(self, command: ModelPin) -> dict[str, Any]:
        return self._wire(await self._changes.pin(command.model, pinned=command.pinned))

    async def _add(self, command: ModelAdd) -> dict[str, Any]:
        settings = _settings(command.settings)
        for param, name in (("model", command.model), *(("settings.aliases", alias) for alias in settings.aliases)):
            _check_name(name, param)
        try:
            return self._wire(await self._changes.add(command.model, command.settings))
        except (StartError, ModelSourceError) as error:
            raise ProtocolError("invalid_request", str(error), param="settings") from None

    async def _remove(self, command: ModelRemove) -> dict[str, Any]:
        await self._changes.remove(command.model)
        return {"id": command.model, "object": "model.removed", "removed": True}

    async def _alias(self, command: ModelAlias) -> dict[str, Any]:
        _check_name(command.alias, "alias")
        await self._changes.alias(command.alias, command.model)
        return self._wire(self._pool.get(command.alias))


def _settings(fields: dict[str, Any]) -> ModelConfig:
    """Check settings as the file's are. Raises ProtocolError."""
    try:
        return ModelConfig.model_validate(fields)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(["settings", *map(str, fault["loc"])])
        raise ProtocolError("invalid_request", f"{excerpt(place)}: {fault['msg']}", param=excerpt(place)) from None


def _check_name(name: str, param: str) -> None:
    if not MODEL_NAME.fullmatch(name):
        text = f"{param} must be 1 to 200 visible ASCII characters without spaces"
        raise ProtocolError("invalid_request", text, param=param)
