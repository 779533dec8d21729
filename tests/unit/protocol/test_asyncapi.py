"""docs/asyncapi.json: valid, up to date, and true of what is sent."""

from __future__ import annotations

import json

import pytest
from jsonschema.validators import validator_for

from protocol.asyncapi import DOCUMENT, encoded
from protocol.messages import SERVER_MESSAGES
from tests.support.asyncapi import Described
from tests.support.server import ROOT
from tests.unit.protocol.test_readme import CLIENT, REAL

DESCRIBED = Described()
AGREED = ROOT / ".tools" / "node_modules" / "@asyncapi" / "specs" / "schemas" / "3.0.0.json"


def test_it_is_up_to_date():
    assert DOCUMENT.read_bytes() == encoded(), "run `python -m protocol.asyncapi`"


def test_it_is_an_asyncapi_document():
    """By AsyncAPI's own schema; every reference leads somewhere."""
    schema = json.loads(AGREED.read_bytes())
    faults = [error.message for error in validator_for(schema)(schema).iter_errors(DESCRIBED.document)]
    assert faults == []
    references = _references(DESCRIBED.document)
    assert len(references) > 100
    for reference in references:
        place = DESCRIBED.document
        for key in reference.removeprefix("#/").split("/"):
            place = place[key]


@pytest.mark.parametrize("kind", sorted(REAL))
def test_what_the_server_sends_is_described(kind: str):
    for frame in REAL[kind]:
        DESCRIBED.check_sent(frame)


def test_what_is_described_is_sent():
    assert {message.__struct_config__.tag for message in SERVER_MESSAGES} == REAL.keys()


@pytest.mark.parametrize("example", CLIENT, ids=lambda example: example.line[:60])
def test_what_clients_send_is_described(example):
    if "error" not in example.settings and "json" in example.tags:
        DESCRIBED.check_taken(json.loads(example.line))


def _references(value: object) -> list[str]:
    match value:
        case dict():
            return [str(found) for key, found in value.items() if key == "$ref"] + _references(list(value.values()))
        case list():
            return [reference for element in value for reference in _references(element)]
        case _:
            return []
