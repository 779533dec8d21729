"""Which models there are, and under which names."""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from server.models.errors import RegistryError, UnknownModelError
from server.models.model import Model

_VERSION: Final = re.compile(r"(?P<name>.+)@(?P<version>[0-9]+)")
_SHOWN: Final = 5  # names in an error text
_COMPARED: Final = 20  # names that are looked at closely for it: among thousands that would take a tenth of a second
_LONGEST: Final = 200  # characters of a name; what else clients write is no model's


class Registry:
    """Models by id, and aliases, which are further names of a model.

    A model named `chat@3` is version 3 of `chat`. Unless `chat` is a model or an alias itself, it means the highest
    version. Moving an alias changes what later requests get; what runs keeps its model.

    default: id or alias of the model for requests that name none.
    """

    def __init__(self, models: Iterable[Model] = (), default: str = "") -> None:
        self._models: dict[str, Model] = {}
        self._aliases: dict[str, str] = {}
        self._aliases_of: dict[str, dict[str, None]] = {}  # the other way round, in their order
        self.default = default
        for model in models:
            self.add(model)

    @property
    def models(self) -> Mapping[str, Model]:
        """By id, in the order in which they came."""
        return self._models

    def aliases(self, name: str) -> list[str]:
        """Return the aliases of one model."""
        return list(self._aliases_of.get(name, ()))

    def get(self, name: str | None, is_there: Callable[[Model], bool] = lambda _model: True) -> Model:
        """Return the model of that name, or the default.

        is_there: whether a model exists for who asks; one that does not is not named to them, either.

        Raises UnknownModelError.
        """
        model = self.find(name or self.default)
        if model is None or not is_there(model):
            known = [name for name, model in self._models.items() if is_there(model)]
            known += [alias for alias, name in self._aliases.items() if is_there(self._models[name])]
            near = _nearest(name or "", known) or known[:_SHOWN]
            raise UnknownModelError(f"there is no model '{(name or '')[:100]}'; there is {', '.join(near) or 'none'}")
        return model

    def find(self, name: str) -> Model | None:
        """Return the model of that name: (1) its id, (2) an alias, (3) the name of its versions, the highest one."""
        model = self._models.get(name) or self._models.get(self._aliases.get(name, ""))  # 1, 2
        if model is not None:
            return model
        versions = ((_VERSION.fullmatch(model.name), model) for model in self._models.values())
        found = [(int(match["version"]), model) for match, model in versions if match and match["name"] == name]
        return max(found, key=lambda each: each[0])[1] if found else None  # 3

    def add(self, model: Model, aliases: Iterable[str] = ()) -> None:
        """Take a model in. Raises RegistryError where a name is taken, and then leaves all as it was."""
        self.check_new(model.name, aliases, model.base)
        self._models[model.name] = model
        for alias in aliases:
            self.alias(alias, model.name)

    def check_new(self, name: str, aliases: Iterable[str], base: str | None) -> None:
        """Raise RegistryError where a model of these names, and with that base model, cannot be taken in."""
        names = [name, *aliases]
        for each in names:
            self._check_free(each)
        if len(set(names)) < len(names):
            raise RegistryError(f"model '{name}' has a name twice: {', '.join(names)}")
        if base is None:
            return
        if base not in self._models:
            raise RegistryError(f"there is no model '{base}' for the adapter '{name}': add that first")
        if (below := self._models[base].base) is not None:
            raise RegistryError(f"'{base}' is an adapter itself; name its base model '{below}'")

    def alias(self, alias: str, name: str) -> None:
        """Give a model another name, or move that name to it. Raises RegistryError, UnknownModelError."""
        target = self.check_alias(alias, name)
        self._aliases_of.get(self._aliases.get(alias, ""), {}).pop(alias, None)
        self._aliases[alias] = target
        self._aliases_of.setdefault(target, {})[alias] = None

    def drop_alias(self, alias: str) -> None:
        """Let an alias mean nothing any more; idempotent."""
        self._aliases_of.get(self._aliases.pop(alias, ""), {}).pop(alias, None)

    def check_alias(self, alias: str, name: str) -> str:
        """Return the id of the model that the alias would mean. Raises RegistryError, UnknownModelError."""
        if alias in self._models:
            raise RegistryError(f"'{alias}' is a model; an alias needs a name of its own")
        return self.get(name).name

    def remove(self, name: str) -> Model:
        """Forget a model and its aliases. Raises as `check_removal`."""
        model = self.check_removal(name)
        del self._models[name]
        for alias in self._aliases_of.pop(name, ()):
            del self._aliases[alias]
        return model

    def check_removal(self, name: str) -> Model:
        """Return the model. Raises UnknownModelError, and RegistryError for the default model and adapters' bases."""
        model = self._models.get(name)
        if model is None:
            raise UnknownModelError(f"there is no model with the id '{name[:100]}'; an alias is moved, not removed")
        if self.find(self.default) is model:
            raise RegistryError(f"'{name}' is the default model; requests that name no model need it")
        adapters = [other.name for other in self._models.values() if other.base == name]
        if adapters:
            raise RegistryError(f"'{name}' is the base of {', '.join(adapters[:_SHOWN])}; remove its adapters first")
        return model

    def _check_free(self, name: str) -> None:
        if name in self._models or name in self._aliases:
            owner = self._aliases.get(name)
            raise RegistryError(f"the name '{name}' is taken" + (f" by model '{owner}'" if owner else ""))


def _nearest(name: str, known: list[str]) -> list[str]:
    name = name[:_LONGEST]
    pairs = _pairs(name)
    likely = heapq.nlargest(_COMPARED, known, key=lambda each: len(pairs & _pairs(each)))
    return difflib.get_close_matches(name, likely, n=3)


def _pairs(name: str) -> set[str]:
    """Return the pairs of neighbouring characters."""
    return {name[index : index + 2] for index in range(len(name) - 1)}
