"""The table of codes, and how an error looks on the wire."""

from __future__ import annotations

import json

import pytest

from protocol.commands import ModelList, ResponseSteer
from protocol.errors import ERROR_CODES, MAX_REFLECTED_CHARS, ProtocolError, excerpt
from protocol.events import answer, error_event, steer_failed


@pytest.mark.parametrize("code", sorted(ERROR_CODES))
def test_every_code_has_status_and_type(code):
    """Status and type come from the table; the event is nested and holds null where there is no field."""
    error = ProtocolError(code, "why")
    assert json.loads(error_event(error)) == {
        "type": "error",
        "status": ERROR_CODES[code][0],
        "error": {"type": ERROR_CODES[code][1], "code": code, "message": "why", "param": None},
    }


@pytest.mark.parametrize(("status", "type"), sorted(set(ERROR_CODES.values())))
def test_types_follow_the_status(status, type):
    """The type is one of OpenAI's, and fits the status."""
    expected = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    assert type == (expected.get(status) or ("server_error" if status >= 500 else "invalid_request_error"))


def test_unknown_codes_are_a_fault_of_ours():
    """A code that is not in the table cannot be raised."""
    with pytest.raises(KeyError):
        ProtocolError("no_such_code", "x")


def test_retry_hint_param_and_address():
    """The hint and the address stand only where there are any."""
    error = ProtocolError("rate_limit_exceeded", "slow down", param="input", retry_after_ms=1000)
    event = json.loads(error_event(error, ModelList(id="k", stream_id="s")))
    assert event["error"]["retry_after_ms"] == 1000
    assert event["error"]["param"] == "input"
    assert (event["id"], event["stream_id"]) == ("k", "s")


def test_a_command_that_could_not_be_read_is_addressed_by_its_error():
    """Without a command, the id and lane that could be read are used."""
    event = json.loads(error_event(ProtocolError("invalid_request", "x", command_id="k", stream_id="s")))
    assert (event["id"], event["stream_id"]) == ("k", "s")


def test_repr():
    """For logs and failing tests."""
    assert repr(ProtocolError("invalid_json", "x", param="y")) == "ProtocolError('invalid_json', 'x', param='y')"


def test_excerpt():
    """Long text is cut, and shows that it was."""
    assert excerpt("x" * MAX_REFLECTED_CHARS) == "x" * MAX_REFLECTED_CHARS
    assert excerpt("x" * (MAX_REFLECTED_CHARS + 1)) == "x" * (MAX_REFLECTED_CHARS - 1) + "…"
    assert excerpt("abcdef", 3) == "ab…"


def test_answers_are_addressed():
    """An answer carries the lane and the id only if the command had them."""
    assert json.loads(answer("model.listed", ModelList(), data=[])) == {"type": "model.listed", "data": []}
    assert json.loads(answer("model.listed", ModelList(id="k", stream_id="s"), data=[])) == {
        "type": "model.listed",
        "data": [],
        "stream_id": "s",
        "id": "k",
    }


def test_steering_is_refused_by_its_own_event():
    """Some agents probe for it."""
    event = json.loads(steer_failed(ResponseSteer(id="k")))
    assert event["type"] == "response.steer.failed"
    assert event["error"]["code"] == "steering_not_supported"
    assert event["id"] == "k"
