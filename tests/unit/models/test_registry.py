"""Names: ids, aliases that move, versions."""

from __future__ import annotations

import difflib
from difflib import SequenceMatcher

import pytest

from server.models.errors import RegistryError, UnknownModelError
from server.models.model import Model
from server.models.registry import Registry
from tests.support.scripted import ScriptedEngine


def model(name: str) -> Model:
    return Model(name, lambda _devices: ScriptedEngine(), 10, 1)


@pytest.fixture
def registry() -> Registry:
    registry = Registry(default="chat")
    for name, aliases in (("chat@2", ()), ("chat@10", ()), ("other", ("small",))):
        registry.add(model(name), aliases)
    return registry


def test_a_model_has_its_id_its_aliases_and_the_name_of_its_versions(registry):
    assert registry.get("other").name == "other"
    assert registry.get("small").name == "other"
    assert registry.get("chat@2").name == "chat@2"
    assert registry.get("chat").name == "chat@10"
    assert registry.get(None).name == "chat@10"


def test_an_alias_moves(registry):
    """Who was found before is still there, under its id."""
    registry.alias("chat", "chat@2")
    assert registry.get("chat").name == "chat@2"
    registry.alias("chat", "small")
    assert registry.get("chat").name == "other"
    assert registry.aliases("other") == ["small", "chat"]


@pytest.mark.parametrize(("name", "nearest"), [("chat@3", "chat@2"), ("smal", "small"), ("x" * 300, "chat@2, chat@10")])
def test_an_unknown_name_is_told_the_nearest(registry, name, nearest):
    with pytest.raises(UnknownModelError, match=nearest) as caught:
        registry.get(name)
    assert len(str(caught.value)) < 200


def test_of_many_names_few_are_compared_closely(monkeypatch):
    """A typo must not cost the others a tenth of a second. The nearest ones are found all the same."""
    registry = Registry(model(f"customer-{n}-chat@1") for n in range(1000))
    compared: list[int] = []
    monkeypatch.setattr(difflib, "SequenceMatcher", counting(compared))
    with pytest.raises(UnknownModelError, match=r"there is customer-517-chat@1, "):
        registry.get("custmer-517-chat")
    assert len(compared) < 50


def counting(compared: list[int]) -> type[SequenceMatcher]:
    class Counting(SequenceMatcher):
        def set_seq1(self, a):
            compared.append(1)
            super().set_seq1(a)

    return Counting


def test_an_alias_that_moves_is_in_one_place(registry):
    """As the list of models shows it; it goes with its model."""
    registry.alias("small", "chat@2")
    assert (registry.aliases("other"), registry.aliases("chat@2")) == ([], ["small"])
    registry.alias("small", "other")
    registry.remove("other")
    assert registry.find("small") is None
    registry.alias("small", "chat@2")
    assert registry.aliases("chat@2") == ["small"]


def test_what_somebody_may_not_see_is_not_named(registry):
    with pytest.raises(UnknownModelError) as caught:
        registry.get("chat", lambda model: model.name == "chat@2")
    assert str(caught.value) == "there is no model 'chat'; there is chat@2"


@pytest.mark.parametrize(
    ("name", "aliases"), [("other", ()), ("small", ()), ("new", ("chat@2",)), ("new", ("small",)), ("new", ("new",))]
)
def test_a_name_is_taken_once(registry, name, aliases):
    """And nothing has changed where it was refused."""
    before = (dict(registry.models), registry.aliases("other"))
    with pytest.raises(RegistryError):
        registry.add(model(name), aliases)
    assert (dict(registry.models), registry.aliases("other")) == before


def test_removing(registry):
    """With its aliases; not the default, nor by an alias."""
    with pytest.raises(UnknownModelError):
        registry.remove("small")
    with pytest.raises(RegistryError, match="'chat@10' is the default model"):
        registry.remove("chat@10")
    registry.remove("other")
    with pytest.raises(UnknownModelError):
        registry.get("small")
