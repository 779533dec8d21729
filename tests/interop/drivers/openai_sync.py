"""The official `openai` package for Python, synchronous."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from openai import OpenAI

from tests.interop.drivers.case import AGENT, ANSWER, LONG, MODEL, QUESTION, WEATHER, cut, run

TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@contextmanager
def connected(url: str, **options: Any) -> Iterator[Any]:
    with OpenAI(api_key="k", base_url=f"{url}/v1") as client, client.responses.connect(**options) as connection:
        yield connection


def answer(connection: Any) -> tuple[str, Any]:
    """Read one answer; return its text as it came and the terminal event's response."""
    text = ""
    for event in connection:
        assert event.type != "error", event
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type in TERMINAL:
            assert event.response.output_text == text
            return text, event.response
    raise AssertionError("the connection ended before the answer did")


def happy(url: str) -> None:
    with connected(url) as connection:
        connection.response.create(model=MODEL, input="hello from the SDK")
        text, response = answer(connection)
        assert text == "hello from the SDK"
        assert response.status == "completed"
        assert response.usage.output_tokens == 4


def turns(url: str) -> None:
    """The model sees the first turn; the prefix cache is hit."""
    with connected(url) as connection:
        connection.response.create(model=MODEL, input="my name is Ada")
        _, first = answer(connection)
        connection.response.create(model=MODEL, input="who am I", previous_response_id=first.id)
        text, second = answer(connection)
        assert text == "who am I"
        assert second.previous_response_id == first.id
        assert second.usage.input_tokens == 4 + 4 + 3
        assert second.usage.input_tokens_details.cached_tokens > 0


def cancel(url: str) -> None:
    with connected(url) as connection:
        connection.response.create(model=MODEL, input=LONG)
        seen = ""
        for event in connection:
            if event.type == "response.output_text.delta":
                if not seen:
                    connection.send_raw(json.dumps({"type": "response.cancel"}))
                seen += event.delta
            if event.type in TERMINAL:
                break
        assert event.type == "response.incomplete"
        assert event.response.model_dump()["incomplete_details"] == {"reason": "cancelled"}
        assert event.response.output_text == seen
        assert 0 < len(seen) < len(LONG)
        connection.response.create(model=MODEL, input="next")
        assert answer(connection)[0] == "next"


def error(url: str) -> None:
    """The SDK parses our error event; the next turn works."""
    with connected(url) as connection:
        connection.response.create(model="no-such", input="x")
        event = next(iter(connection))
        assert event.type == "error"
        assert event.error.code == "model_not_found"
        connection.response.create(model=MODEL, input="fine")
        assert answer(connection)[0] == "fine"


def reconnect(url: str) -> None:
    """The SDK reconnects by itself; what it sends then is ours to say: the rest of the answer, please."""
    seen: list[Any] = []

    def on_reconnecting(_: Any) -> None:
        last = max(event.sequence_number for event in seen)
        retrieve = {"type": "response.retrieve", "response_id": seen[0].response.id, "starting_after": last}
        connection.send_raw(json.dumps(retrieve))

    with connected(url, on_reconnecting=on_reconnecting, initial_delay=0.05, max_delay=0.5) as connection:
        connection.response.create(model=MODEL, input=LONG)
        was_cut = False
        for event in connection:
            seen.append(event)
            if event.type == "response.output_text.delta" and not was_cut:
                was_cut = True
                cut()
            if event.type in TERMINAL:
                break
        assert event.type == "response.completed"
        assert "".join(event.delta for event in seen if event.type == "response.output_text.delta") == LONG
        numbers = [event.sequence_number for event in seen]
        assert numbers == sorted(set(numbers)), numbers


def tools(url: str) -> None:
    """A thought, a call whose arguments come in pieces, its output, and the answer; the SDK has a type for each."""
    tool: Any = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True}
    with connected(url) as connection:
        connection.response.create(model=AGENT, input=QUESTION, tools=[tool])
        thought = arguments = ""
        for event in connection:
            type(event).model_validate(event.to_dict())  # the SDK itself does not check
            match event.type:
                case "response.reasoning_text.delta":
                    thought += event.delta
                case "response.function_call_arguments.delta":
                    arguments += event.delta
                case "response.completed":
                    break
        assert thought == "They want the weather."
        *_, call = event.response.output
        assert [item.type for item in event.response.output] == ["reasoning", "message", "function_call"]
        assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Paris"})
        assert arguments == call.arguments
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": WEATHER}
        connection.response.create(model=AGENT, input=[output], tools=[tool], previous_response_id=event.response.id)
        assert answer(connection)[0] == ANSWER


if __name__ == "__main__":
    run({"happy": happy, "turns": turns, "cancel": cancel, "error": error, "reconnect": reconnect, "tools": tools})
