"""Sign-in on a real server: each way in, and what it sees when a sign-in ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from server.access.keys import Keys
from server.cli import main
from tests.integration.server.conftest import run_checked
from tests.integration.server.wire import TERMINAL, Client, client
from tests.support.credentials import full
from tests.support.keyed import bearer, in_store, make_key
from tests.support.server import ROOT, ServerProcess, clean_environment

SECRET = "a secret of more than thirty-two characters"
CONFIG = f"""
[auth]
methods = ["keys", "jwt"]
recheck_s = 0.1
[auth.jwt]
secret = "{SECRET}"
leeway_s = 0
[limits]
sign_in_timeout_s = 0.3
[models.echo]
source = "echo"
[models.big]
source = "echo"
requires = "big-models"
"""


def run_cli(server: ServerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `tokenwire keys …` beside the running server, on its data directory."""
    command = [
        sys.executable,
        "-m",
        "server",
        "keys",
        *arguments,
        "--engine",
        "echo",
        "--data-dir",
        str(server.data_dir),
    ]
    environment = {**clean_environment(), "TOKENWIRE_AUTH__RECHECK_S": "0.1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Takes keys and tokens; answers slowly enough to act while one streams."""
    made = ServerProcess(tmp_path_factory.mktemp("keyed"), "--echo-rate", "30", config=CONFIG).start()
    made.key = asyncio.run(make_key(made.data_dir, "prometheus", "metrics"))
    yield from run_checked(made)


@pytest.fixture(scope="module")
def key(server: ServerProcess) -> str:
    """A key of ann's, without any right, made by the command."""
    done = run_cli(server, "create", "--user", "ann", "--tenant", "acme", "--label", "ann's laptop")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_models_from_the_command_line(server: ServerProcess, key: str, capsys, monkeypatch) -> None:
    """Who has no key, a wrong one, or one without the right is told so, and how a key is given."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def models(*arguments: str) -> tuple[int, str]:
        code = main(["models", *arguments, "--url", server.url])
        return code, capsys.readouterr().err

    how = "--api-key, or the variable OPENAI_API_KEY"
    code, error = models("list")
    assert (code, error.startswith("tokenwire: sign in first")) == (1, True)
    assert error.endswith(f"({how})\n")
    assert models("list", "--api-key", "sk-wrong") == (2, f"tokenwire: {server.url} does not take this key: {how}\n")
    monkeypatch.setenv("OPENAI_API_KEY", key)
    assert models("list") == (0, "")
    code, error = models("load", "echo")
    assert code == 1
    assert error.startswith("tokenwire: this needs the right 'admin'")


def token(**claims: Any) -> str:
    return jwt.encode(full({"tenant": "acme", **claims}), SECRET, "HS256")


async def close_of(websocket: Any) -> tuple[int, str]:
    """Return code and reason of the server's close frame, when it has come."""
    with contextlib.suppress(ConnectionClosed):
        async with asyncio.timeout(30):
            async for _ in websocket:
                pass
    return websocket.close_code, websocket.close_reason


# Ways in


async def test_a_bearer_key(server: ServerProcess, key: str):
    """In a header, for sockets, `/chat` and GET requests."""
    async with client(server, additional_headers=bearer(key)) as c:
        assert (await c.ask("hi")).text == "hi"
    async with connect(f"{server.ws_url}/chat", additional_headers=bearer(key)) as chat:
        await chat.send("hi")
        assert await chat.recv() == "hi"
    assert server.get("/v1/conversations", key)[0] == 200


async def test_a_subprotocol(server: ServerProcess, key: str):
    """As browsers and OpenAI's JavaScript SDK send it; the credential is not repeated."""
    offered = [Subprotocol("responses"), Subprotocol(f"openai-insecure-api-key.{key}")]
    async with connect(f"{server.ws_url}/v1/responses", subprotocols=offered) as websocket:
        assert websocket.subprotocol == "responses"
        assert (await Client(websocket).ask("hi")).text == "hi"


async def test_the_first_frame(server: ServerProcess, key: str):
    """And a frame sent right behind it, before the answer, is served."""
    async with client(server) as c:
        c.write_together({"type": "session.update", "token": key, "id": "s"}, {"input": "hi"})
        session = await c.event()
        expected: dict[str, Any] = {"user": "acme/ann", "tenant": "acme", "rights": [], "expires_at": None}
        assert session == {"type": "session.updated", "session": expected, "id": "s"}
        assert (await c.answer()).text == "hi"


async def test_a_token_in_each_place(server: ServerProcess):
    """Tokens go where keys go."""
    async with client(server, additional_headers=bearer(token())) as c:
        session = (await c.do("session.update"))["session"]
        assert (session["user"], session["expires_at"] > time.time()) == ("acme/ann", True)
    async with client(server) as c:
        assert (await c.do("session.update", token=token(rights="admin")))["session"]["rights"] == ["admin"]
    assert server.get("/v1/models", token())[0] == 200


# Not in


@pytest.mark.parametrize("path", ["/v1/responses", "/chat"])
async def test_a_wrong_credential_at_the_handshake(server: ServerProcess, key: str, path: str):
    """HTTP 401 with an error that a program can read; the credential is in neither answer nor log."""
    for wrong in (key[:-2] + "xx", token(exp=1), "nonsense"):
        with pytest.raises(InvalidStatus) as refused:
            await connect(server.ws_url + path, additional_headers=bearer(wrong))
        reply = refused.value.response
        assert (reply.status_code, reply.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert b'"unauthorized"' in reply.body
        assert wrong.encode() not in reply.body
        assert not any(wrong in line or wrong[-20:] in line for line in server.log)


async def test_nobody(server: ServerProcess, key: str):
    """Where no frame can sign in: HTTP 401. A credential in the URL is none."""
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"{server.ws_url}/chat")
    assert refused.value.response.status_code == 401
    for path in ("/v1/models", "/v1/conversations", "/v1/responses/resp_1", f"/v1/models?token={key}", "/metrics"):
        assert server.get(path, "")[0] == 401
    for path in ("/", "/healthz", "/readyz", "/client.js"):
        assert server.get(path, "wrong")[0] == 200


@pytest.mark.parametrize(
    "frame", ['{"input":"hi"}', "hi", "{", '{"type":"session.update"}', '{"type":"session.update","token":"wrong"}']
)
async def test_a_first_frame_that_signs_nobody_in(server: ServerProcess, frame: str):
    """Is answered, and the socket closed: a page then asks for a key."""
    async with client(server) as c:
        await c.send(frame)
        assert (await c.error())["code"] in {"unauthorized", "invalid_json"}
        assert await close_of(c.websocket) == (4401, "sign in")


async def test_a_first_frame_of_any_size(server: ServerProcess):
    """What is too long for a token is not even read as JSON."""
    async with client(server) as c:
        await c.send("[" * 1_000_000)
        assert (await c.error())["code"] == "unauthorized"
        assert await close_of(c.websocket) == (4401, "sign in")


async def test_no_first_frame(server: ServerProcess):
    """Whoever does not sign in in time goes."""
    async with connect(f"{server.ws_url}/v1/responses") as websocket:
        code, reason = await close_of(websocket)
    assert (code, reason) == (4408, "sign in within 0.3 s")


# Ends


async def test_revoking_a_key_with_a_stream_open(server: ServerProcess):
    """The command closes the socket at once, ends its answer, and signs nobody in any more."""
    done = run_cli(server, "create", "--user", "carl", "--rights", "instructions,metrics", "--expires-days", "1")
    key = done.stdout.strip()
    assert key in done.stdout
    assert key not in done.stderr
    async with client(server, additional_headers=bearer(key)) as c:
        response = await c.begin("word " * 3000)
        await c.create("never " * 3000)  # waits for its turn on the lane
        revoked = await asyncio.to_thread(run_cli, server, "revoke", key)
        assert revoked.returncode == 0, revoked.stderr
        began = time.monotonic()
        events = await c.until_closed()
        assert c.websocket.close_code == 4401
        assert c.websocket.close_reason == "revoked"
        assert time.monotonic() - began < 30
    assert any(event["type"] == "error" and event["error"]["code"] == "unauthorized" for event in events)
    assert [event["response"]["id"] for event in events if event["type"] == "response.incomplete"] == [response]
    assert not any(event["type"] == "response.created" and event["response"]["id"] != response for event in events)
    with pytest.raises(InvalidStatus):
        await connect(f"{server.ws_url}/v1/responses", additional_headers=bearer(key))
    again = await make_key(server.data_dir, "carl")
    server.until_metric("responses_running", 0)
    status, stored = server.get(f"/v1/responses/{response}", again)
    assert (status, stored["status"]) == (200, "incomplete")
    listed = run_cli(server, "list").stdout
    assert "carl" in listed
    assert "revoked 20" in listed
    assert key[-20:] not in listed


async def test_a_token_that_expires_with_a_stream_open(server: ServerProcess):
    """The socket closes, the answer goes on; the same account comes back for it."""
    async with client(server, additional_headers=bearer(token(exp=int(time.time()) + 2))) as c:
        response = await c.begin("word " * 40)
        assert await close_of(c.websocket) == (4401, "expired")
    async with client(server, additional_headers=bearer(token())) as c:
        await c.send("response.retrieve", response_id=response)
        events = await c.until(*TERMINAL)
        assert events[-1]["type"] == "response.completed"


async def test_a_token_that_is_renewed(server: ServerProcess):
    """A new token keeps the socket open; another account's and a wrong one change nothing."""
    async with client(server, additional_headers=bearer(token(exp=int(time.time()) + 2))) as c:
        assert (await c.refused("session.update", token=token(sub="bob")))["code"] == "invalid_request"
        assert (await c.refused("session.update", token="wrong"))["code"] == "unauthorized"
        renewed = await c.do("session.update", token=token(rights=["instructions"]))
        assert renewed["session"]["rights"] == ["instructions"]
        answer = await c.ask("word " * 80, instructions="be brief")  # longer than the old token lasts
        assert answer.type == "response.completed"


async def test_text_mode_ends_too(server: ServerProcess):
    """`/chat` has its own words for it."""
    key = await make_key(server.data_dir, "dora")
    async with connect(f"{server.ws_url}/chat", additional_headers=bearer(key)) as chat:
        await chat.send("word " * 3000)
        await chat.recv()
        await in_store(server.data_dir, lambda store: Keys(store).revoke(key[3:19]))
        await chat.send("never " * 3000)
        assert await close_of(chat) == (4401, "revoked")
    server.until_metric("responses_running", 0)


async def test_the_store_is_away(tmp_path_factory: pytest.TempPathFactory):
    """Nobody can be checked: the handshake says to try again, a first frame too; open sockets stay."""
    config = CONFIG.replace("[limits]", "[store]\noperation_timeout_s = 0.3\nunavailable_timeout_s = 0.3\n[limits]")
    server = ServerProcess(tmp_path_factory.mktemp("away"), config=config).start()
    server.key = await make_key(server.data_dir, "prometheus", "metrics")
    for _ in run_checked(server):
        key = await make_key(server.data_dir, "ann")
        async with client(server, additional_headers=bearer(key)) as c:
            os.kill(server.valkey_pid(), signal.SIGSTOP)
            try:
                with pytest.raises(InvalidStatus) as refused:
                    await connect(f"{server.ws_url}/v1/responses", additional_headers=bearer(key))
                assert refused.value.response.status_code == 503
                assert "Retry-After" in refused.value.response.headers
                async with connect(f"{server.ws_url}/v1/responses") as late:
                    await Client(late).send("session.update", token=key)
                    assert (await close_of(late))[0] == 1013
            finally:
                os.kill(server.valkey_pid(), signal.SIGCONT)
            assert (await c.do("model.list"))["type"] == "model.listed"


def test_a_key_command_without_a_server(tmp_path):
    """It starts the private Valkey for itself, and what it made is there afterwards."""
    common = [sys.executable, "-m", "server", "keys"]
    where = ["--engine", "echo", "--data-dir", str(tmp_path)]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*common, *arguments, *where]
        return subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False)

    made = run("create", "--user", "ann")
    assert made.stdout.startswith("tw-")
    assert "ann" in run("list").stdout
    assert run("revoke", "0" * 16).returncode == 1
