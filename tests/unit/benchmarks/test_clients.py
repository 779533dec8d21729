"""The load generator reads what servers send, however it is cut."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.benchmarks.clients import SseClient, TokenwireClient, masked


def frame(text):
    data = text.encode()
    head = bytes((0x81, len(data))) if len(data) < 126 else bytes((0x81, 126)) + len(data).to_bytes(2, "big")
    return head + data


def delta(number):
    return f'{{"type":"response.output_text.delta","sequence_number":{number},"delta":"{"x" * 200}"}}'


def answer():
    end = {"type": "response.incomplete", "response": {"usage": {"output_tokens": 3}}}
    created = {"type": "response.created", "response": {"id": "resp_1"}}
    words = [json.dumps(created, separators=(",", ":")), delta(4), delta(5), json.dumps(end, separators=(",", ":"))]
    return b"".join(map(frame, words))


class Wire:
    """A transport that keeps what was written."""

    def __init__(self):
        self.written = b""

    def write(self, data):
        self.written += data


def connected(kind, **job):
    client = kind({"path": "/", "port": 1, "prompt": "hi", "tokens": 3, "model": "m"} | job, 0)
    client.connection_made(Wire())
    return client


@pytest.mark.parametrize("size", [1, 3, 100, 10_000])
async def test_an_answer_is_counted_whatever_the_pieces(size):
    client = connected(TokenwireClient)
    client.data_received(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    client.ask()
    data = answer()
    for start in range(0, len(data), size):
        client.data_received(data[start : start + size])
    await asyncio.wait_for(client.answered, 1)
    seen = client.seen()
    assert (seen["id"], seen["frames"], seen["bytes"], len(seen["gaps"])) == ("resp_1", 2, len(data), 1)


async def test_an_answer_of_the_wrong_length_is_a_fault():
    client = connected(TokenwireClient, tokens=4)
    client.data_received(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    client.ask()
    client.data_received(answer())
    with pytest.raises(RuntimeError, match="an answer of 3 tokens"):
        await client.answered


async def test_a_refused_handshake_is_a_fault():
    client = connected(TokenwireClient)
    client.data_received(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
    with pytest.raises(RuntimeError, match="503"):
        await client.connected


async def test_a_ping_is_answered():
    client = connected(TokenwireClient)
    client.data_received(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    client.transport.written = b""
    client.data_received(b"\x89\x02ok")
    assert client.transport.written == masked(10, b"ok")


async def test_server_sent_events_are_counted_without_the_first_and_the_last():
    client = connected(SseClient)
    client.ask()
    client.data_received(b'HTTP/1.1 200 OK\r\n\r\ndata: {"id":"chatcmpl-1","role"}\n\n')
    client.data_received(b'data: {"a"}\n\ndata: {"b"}\n\ndata: [DO')
    client.data_received(b"NE]\n\n")
    await asyncio.wait_for(client.answered, 1)
    assert (client.seen()["id"], client.seen()["frames"]) == ("chatcmpl-1", 2)


def test_long_commands_have_a_long_length():
    assert masked(1, b"x" * 300)[:4] == b"\x81\xfe\x01\x2c"
