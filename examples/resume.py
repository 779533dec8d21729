"""Ask one question and print the answer, whatever happens to the connection on the way.

    python examples/resume.py ws://localhost:8000/v1/responses "What is the capital of France?"

Needs `pip install websockets`. The recipe:
1. The turn carries an `id` of ours. Until the server has named the response, the same frame is sent again: one turn.
2. From then on only the rest is asked for: `response.retrieve` with `starting_after`, the last number that was seen.
3. Events at or below that number are repetitions. The terminal event ends it and has the whole text.
"""

import asyncio
import json
import random
import sys
import uuid
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
RETRY_CODES = {1000, 1001, 1005, 1006, 1011, 1012, 1013, 1015}  # after others a new connection is no use
FIRST_DELAY_S, MAX_DELAY_S = 0.3, 10.0


class Answer:
    """One answer: what to send on a new connection, and what has come of it so far."""

    def __init__(self, text: str) -> None:
        self.request = {"type": "response.create", "id": uuid.uuid4().hex, "input": text}
        self.response_id: str | None = None
        self.last = -1  # sequence number

    def frame(self) -> dict[str, Any]:
        if self.response_id is None:
            return self.request
        return {"type": "response.retrieve", "response_id": self.response_id, "starting_after": self.last}

    def receive(self, event: dict[str, Any]) -> bool:
        """Print what is new; return whether that was the end."""
        kind, number = event["type"], event.get("sequence_number", -1)
        if kind not in TERMINAL and number <= self.last:
            return False
        self.last = max(self.last, number)
        self.response_id = self.response_id or event.get("response", {}).get("id")
        if kind == "response.output_text.delta":
            print(event["delta"], end="", flush=True)
        return kind in TERMINAL


async def ask(url: str, text: str) -> dict[str, Any]:
    """Return the response object at its end. Raises RuntimeError when the server refuses."""
    answer, attempt = Answer(text), 0
    while True:
        delay = random.uniform(0.5, 1) * min(MAX_DELAY_S, FIRST_DELAY_S * 2**attempt)  # noqa: S311 only jitter
        try:
            async with connect(url, max_size=None) as socket:
                await socket.send(json.dumps(answer.frame()))
                async for frame in socket:
                    event, attempt = json.loads(frame), 0
                    if event["type"] == "error":
                        delay = event["error"].get("retry_after_ms", 0) / 1000
                        if not delay:
                            raise RuntimeError(event["error"]["message"])
                        break  # ask again on a new connection, when the server says
                    if answer.receive(event):
                        response: dict[str, Any] = event["response"]
                        return response
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.code not in RETRY_CODES:
                raise RuntimeError(f"the server closed the connection: {closed.rcvd}") from closed
        except (OSError, TimeoutError, InvalidHandshake):
            pass  # not there (yet): try again
        attempt += 1
        await asyncio.sleep(delay)


if __name__ == "__main__":
    response = asyncio.run(ask(sys.argv[1], sys.argv[2]))
    print(f"\n[{response['status']}]", file=sys.stderr)
