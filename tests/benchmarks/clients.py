"""Clients for load: as little work per byte as Python allows, so that the servers are what is measured.

`load.py` runs them.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Final

TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
ENDS: Final = (b'{"type":"response.completed"', b'{"type":"response.incomplete"')


def masked(opcode: int, payload: bytes) -> bytes:
    """Return a client's frame, masked with zeros, which changes nothing (RFC 6455 section 5.3)."""
    size = len(payload)
    if size < 126:
        return bytes((0x80 | opcode, 0x80 | size, 0, 0, 0, 0)) + payload
    return bytes((0x80 | opcode, 0x80 | 126)) + size.to_bytes(2, "big") + bytes(4) + payload


class Client(asyncio.Protocol):
    """One connection that asks and notes when what came. Times are CLOCK_MONOTONIC's, the same in every process."""

    def __init__(self, job: dict[str, Any], number: int) -> None:
        loop = asyncio.get_running_loop()
        self.job = job
        self.number = number
        self.connected: asyncio.Future[None] = loop.create_future()
        self.answered: asyncio.Future[None] = loop.create_future()
        self.id = ""
        self.transport: Any = None
        self._reset()

    def _reset(self) -> None:
        self.sent = self.first = self.last = self.ended = 0.0
        self.frames = self.bytes = 0
        self.gaps: list[float] = []
        self.answered = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.hello()

    def hello(self) -> None:
        """Open the conversation with the server."""
        self.connected.set_result(None)

    def request(self) -> bytes:
        """Return the bytes that ask for an answer."""
        raise NotImplementedError

    def ask(self) -> None:
        """Send the request; `answered` is done at the answer's end."""
        self._reset()
        data = self.request()
        self.sent = time.monotonic()
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        fault = ConnectionError(f"the server closed connection {self.number}: {exc}")
        for future in (self.connected, self.answered):
            if not future.done():
                future.set_exception(fault)
                future.exception()

    def token(self, now: float) -> None:
        """Note text of the answer."""
        if self.first:
            self.gaps.append(now - self.last)
        else:
            self.first = now
        self.last = now
        self.frames += 1

    def end(self, now: float) -> None:
        self.ended = now
        if not self.answered.done():
            self.answered.set_result(None)

    def fail(self, what: bytes) -> None:
        if not self.answered.done():
            self.answered.set_exception(RuntimeError(what[:500].decode(errors="replace")))

    def seen(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "sent": self.sent,
            "first": self.first,
            "ended": self.ended,
            "frames": self.frames,
            "bytes": self.bytes,
            "gaps": self.gaps,
        }


class SocketClient(Client):
    """A WebSocket; `path` is the job's."""

    def hello(self) -> None:
        self._buffer = b""
        head = (
            f"GET {self.job['path']} HTTP/1.1\r\nHost: 127.0.0.1:{self.job['port']}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        self.transport.write(head.encode())

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        buffer = self._buffer + data if self._buffer else data
        if not self.connected.done():
            head, end, buffer = buffer.partition(b"\r\n\r\n")
            if not end:
                self._buffer = head
                return
            if b" 101 " not in head[:20]:
                self.connected.set_exception(RuntimeError(head[:200].decode()))
                return
            self.connected.set_result(None)
            data = buffer
        self.bytes += len(data)
        self._buffer = self._take(buffer, now)

    def _take(self, buffer: bytes, now: float) -> bytes:
        """Handle the whole frames and return the rest."""
        at, size = 0, len(buffer)
        while size - at >= 2:
            length = buffer[at + 1]
            start = at + 2
            if length >= 126:
                start += 2 if length == 126 else 8
                if size < start:
                    break
                length = int.from_bytes(buffer[at + 2 : start], "big")
            if size < start + length:
                break
            opcode = buffer[at] & 15
            at = start + length
            if opcode == TEXT:
                self.frame(buffer, start, at, now)
            elif opcode == PING:
                self.transport.write(masked(PONG, buffer[start:at]))
            elif opcode == CLOSE:
                self.fail(b"closed: " + buffer[start:at])
        return buffer[at:]

    def frame(self, buffer: bytes, start: int, stop: int, now: float) -> None:
        """Take a text frame, which lies between two places of the buffer."""
        raise NotImplementedError

    def send(self, **command: Any) -> None:
        """Send a command."""
        self.transport.write(masked(TEXT, json.dumps(command).encode()))


class TokenwireClient(SocketClient):
    """`/v1/responses`."""

    def request(self) -> bytes:
        body = {
            "input": self.job["prompt"],
            "max_output_tokens": self.job["tokens"],
            "ignore_eos": True,
            "store": self.job.get("store", True),
        }
        return masked(TEXT, json.dumps(body).encode())

    def frame(self, buffer: bytes, start: int, stop: int, now: float) -> None:
        if buffer.startswith(b'{"type":"response.output_text.delta"', start):
            self.token(now)
        elif buffer.startswith(ENDS, start):
            made = json.loads(buffer[start:stop])["response"]["usage"]["output_tokens"]
            if made != self.job["tokens"]:
                self.fail(b"an answer of %d tokens" % made)
            self.end(now)
        elif buffer.startswith(b'{"type":"response.created"', start):
            self.id = json.loads(buffer[start:stop])["response"]["id"]
        elif buffer.startswith((b'{"type":"error"', b'{"type":"response.failed"'), start):
            self.fail(buffer[start:stop])


class CancellingClient(TokenwireClient):
    """Begins an answer that would be long; all of them are cancelled at the same moment."""

    def request(self) -> bytes:
        self.begun = asyncio.get_running_loop().create_future()
        return super().request()

    def token(self, now: float) -> None:
        super().token(now)
        if not self.begun.done():
            self.begun.set_result(None)

    def frame(self, buffer: bytes, start: int, stop: int, now: float) -> None:
        if buffer.startswith(ENDS, start):
            self.end(now)
        else:
            super().frame(buffer, start, stop, now)

    def cancel(self) -> None:
        """From here on it is timed."""
        self.sent = time.monotonic()
        self.send(type="response.cancel")


class ResumingClient(SocketClient):
    """Asks for the second half of an answer that has ended."""

    def request(self) -> bytes:
        command = {
            "type": "response.retrieve",
            "response_id": self.job["response"],
            "starting_after": self.job["after"],
        }
        return masked(TEXT, json.dumps(command).encode())

    def frame(self, buffer: bytes, start: int, stop: int, now: float) -> None:
        self.token(now)
        if buffer.startswith(ENDS, start):
            self.end(now)
        elif buffer.startswith(b'{"type":"error"', start):
            self.fail(buffer[start:stop])


class SubscribedClient(SocketClient):
    """Listens to a conversation in which somebody else asks."""

    def hello(self) -> None:
        super().hello()
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ask(self) -> None:
        self._reset()

    def frame(self, buffer: bytes, start: int, stop: int, now: float) -> None:
        if not self.joined.done():
            self.joined.set_result(None)
            return
        self.frames += 1
        if buffer.startswith((*ENDS, b"[DONE]"), start):
            self.end(now)


class TutorialClient(SocketClient):
    """The tutorial's server: text in, text out, `[DONE]` at the end."""

    def request(self) -> bytes:
        return masked(TEXT, json.dumps({"prompt": self.job["prompt"], "max_tokens": self.job["tokens"]}).encode())

    def frame(self, buffer: bytes, start: int, stop: int, now: float) -> None:
        if buffer.startswith(b"[DONE]", start):
            self.end(now)
        else:
            self.token(now)


class SseClient(Client):
    """vLLM's `/v1/chat/completions`, streamed, on a connection that is kept."""

    def request(self) -> bytes:
        body = {
            "model": self.job["model"],
            "messages": [{"role": "user", "content": self.job["prompt"]}],
            "max_tokens": self.job["tokens"],
            "ignore_eos": True,
            "stream": True,
            **self.job.get("body", {}),
        }
        data = json.dumps(body).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self._events = 0
        self._tail = b""
        self._is_headed = False
        return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self.bytes += len(data)
        if not self._is_headed:
            self._is_headed = True
            if not data.startswith(b"HTTP/1.1 200"):
                self.fail(data)
        events = data.count(b"data: ")
        for _ in range(events):
            self._events += 1
            if self._events > 1:  # the first only names the role
                self.token(now)
        tail = self._tail + data[-64:]
        if b"data: [DONE]" in tail:
            self.frames -= 1
            self.end(now)
        if not self.id and (at := data.find(b'"id":"')) >= 0:
            self.id = data[at + 6 : data.index(b'"', at + 6)].decode()
        self._tail = data[-16:]


KINDS: Final[dict[str, type[Client]]] = {
    "tokenwire": TokenwireClient,
    "tutorial": TutorialClient,
    "sse": SseClient,
    "cancelling": CancellingClient,
    "resuming": ResumingClient,
    "subscribed": SubscribedClient,
    "idle": SubscribedClient,
}
