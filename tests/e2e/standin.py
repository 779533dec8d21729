"""A scripted server for the page's own tests: it does on demand what the real one does seldom.

It speaks the part of the wire that the page uses, keeps everything in memory, and echoes the user's text word by
word. A turn whose text starts with a word of `SCRIPTS` plays that fault first. Run it by hand to work on the page:
`python -m tests.e2e.standin 8123`.
"""

import asyncio
import contextlib
import itertools
import json
import re
import sys
import threading
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from server.gateway.page import Page, security_headers
from tests.support.listening import accept_no_more

SNAPSHOT_ITEMS = 100
SEARCH_STEP = 50  # conversations that one command looks through
SCRIPTS = ("!queue", "!refuse", "!cut", "!final", "!fail", "!silent")


class Run:
    """One response: its events so far, and a wake-up for whoever follows them."""

    def __init__(self, response_id: str, conversation: str) -> None:
        self.id = response_id
        self.conversation = conversation
        self.events: list[dict] = []
        self.changed = asyncio.Condition()
        self.cancelled = False
        self.over = False
        self.listeners: set[ServerConnection] = set()

    async def emit(self, kind: str, **fields: object) -> None:
        async with self.changed:
            self.events.append({"type": kind, "sequence_number": len(self.events), **fields})
            self.over = kind in ("response.completed", "response.incomplete", "response.failed")
            self.changed.notify_all()


class StandIn:
    """Conversations in memory behind `url`, once `start()` has returned."""

    def __init__(self, word_seconds: float = 0.01) -> None:
        self.word_seconds = word_seconds
        self.files = Page()
        self.conversations: dict[str, dict] = {}
        self.items: dict[str, list[dict]] = {}
        self.runs: dict[str, Run] = {}
        self.turns: dict[str, Run] = {}  # by the client's id
        self.models: list[dict] = [{"id": "stand-in", "object": "model"}]
        self.commands: list[dict] = []  # everything that was received, for assertions
        self.answers: dict[str, dict] = {}
        self.played: set[str] = set()  # scripts that are played only once a turn
        self.closing = True  # whether "!final" closes
        self.connections: set[ServerConnection] = set()
        self.subscribers: dict[str, dict[ServerConnection, str | None]] = {}  # by conversation, with their lanes
        self.tasks: set[asyncio.Task] = set()
        self.numbers = itertools.count(1)
        self.steps = threading.Semaphore(0)  # see `go_on`
        self.port = 0

    # ── life ──

    def start(self, port: int = 0) -> "StandIn":
        """Serves from a thread of its own."""
        ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready, port)), daemon=True)
        self.thread.start()
        assert ready.wait(10)
        return self

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.stopped.set)
        self.thread.join(20)
        assert not self.thread.is_alive()

    def cut_all(self, code: int | None = None) -> None:
        """Closes every socket with a close code; None cuts the wire (the client sees 1006)."""

        async def cut() -> None:
            for connection in list(self.connections):
                if code is None:
                    connection.transport.abort()
                else:
                    await connection.close(code, "")

        asyncio.run_coroutine_threadsafe(cut(), self.loop).result(10)

    async def _serve(self, ready: threading.Event, port: int) -> None:
        self.loop, self.stopped = asyncio.get_running_loop(), asyncio.Event()
        opening = serve(
            self._connection,
            "127.0.0.1",
            port,
            process_request=self._page,
            open_timeout=5,  # `stop` waits longer
            close_timeout=5,
        )
        async with opening as server:
            self.port = server.sockets[0].getsockname()[1]
            self.url = f"http://127.0.0.1:{self.port}/"
            ready.set()
            await self.stopped.wait()
            await accept_no_more(server.server)
            for task in self.tasks:
                task.cancel()

    def _page(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/v1/responses":
            return None
        file = self.files.get(request.path.split("?")[0])
        if file is None:
            return connection.respond(HTTPStatus.NOT_FOUND, "no such page\n")
        headers = Headers(
            {"Content-Type": file.content_type, "Content-Length": str(len(file.body)), "Connection": "close"}
        )
        headers.update(security_headers(request.headers["Host"]))
        return Response(200, "OK", headers, file.body)

    async def _connection(self, connection: ServerConnection) -> None:
        self.connections.add(connection)
        try:
            with contextlib.suppress(Exception):
                async for frame in connection:
                    await self._command(connection, json.loads(frame))
        finally:
            self.connections.discard(connection)
            for members in self.subscribers.values():
                members.pop(connection, None)

    def _spawn(self, coroutine) -> None:
        task = asyncio.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    # ── commands ──

    async def _command(self, connection: ServerConnection, command: dict) -> None:
        self.commands.append(command)
        method = getattr(self, "_" + re.sub(r"\W", "_", command["type"]))
        answer = await method(connection, command)
        if answer is not None:
            echoed = {key: command[key] for key in ("id", "stream_id") if key in command}
            await self._send(connection, {**answer, **echoed})

    async def _send(self, connection: ServerConnection, event: dict) -> None:
        with contextlib.suppress(Exception):
            await connection.send(json.dumps(event))

    async def _conversation_create(self, _, command: dict) -> dict:
        if command["id"] not in self.answers:
            number = next(self.numbers)
            conversation_id, now = f"conv_{number}", 1_700_000_000 + number
            conversation = {
                "id": conversation_id,
                "object": "conversation",
                "created_at": now,
                "updated_at": now,
                "metadata": command.get("metadata", {}),
                "running_response": None,
            }
            self.conversations[conversation_id] = conversation
            self.items[conversation_id] = []
            self.answers[command["id"]] = {"type": "conversation.created", "conversation": conversation}
        return self.answers[command["id"]]

    async def _model_list(self, _, command: dict) -> dict:
        return {"type": "model.listed", "data": self.models}

    async def _conversation_retrieve(self, _, command: dict) -> dict:
        conversation = self.conversations.get(command["conversation"])
        if conversation is None:
            return error(404, "conversation_not_found", "There is no such conversation.")
        return {"type": "conversation.retrieved", "conversation": conversation}

    async def _conversation_list(self, _, command: dict) -> dict:
        newest = sorted(self.conversations.values(), key=lambda conversation: -conversation["updated_at"])
        start = next((i + 1 for i, c in enumerate(newest) if c["id"] == command.get("after")), 0)
        limit = command.get("limit", 20)
        return {
            "type": "conversation.listed",
            "data": newest[start : start + limit],
            "has_more": len(newest) > start + limit,
        }

    async def _conversation_search(self, _, command: dict) -> dict:
        newest = sorted(self.conversations.values(), key=lambda conversation: -conversation["updated_at"])
        start = next((i + 1 for i, c in enumerate(newest) if c["id"] == command.get("after")), 0)
        looked = newest[start : start + SEARCH_STEP]
        found = []
        for conversation in looked:
            said = [(item["id"], item["content"][0]["text"]) for item in self.items[conversation["id"]]]
            for item_id, text in [*reversed(said), (None, conversation["metadata"].get("title", ""))]:
                if all(word in text.lower() for word in command["query"].split()):
                    found.append({"conversation": conversation, "item_id": item_id, "excerpt": text[:160]})
                    break
        return {
            "type": "conversation.searched",
            "data": found,
            "last_id": looked[-1]["id"] if looked else None,
            "has_more": len(newest) > start + SEARCH_STEP,
        }

    async def _conversation_delete(self, _, command: dict) -> dict:
        conversation = {"id": command["conversation"], "object": "conversation.deleted", "deleted": True}
        if self.conversations.pop(command["conversation"], None) is None:
            return error(404, "conversation_not_found", "There is no such conversation.")
        await self._tell(command["conversation"], {"type": "conversation.deleted", "conversation": conversation})
        return {"type": "conversation.deleted", "conversation": conversation}

    async def _conversation_update(self, _, command: dict) -> dict:
        conversation = self.conversations[command["conversation"]]
        conversation["metadata"] = command["metadata"]
        await self._tell(conversation["id"], {"type": "conversation.updated", "conversation": conversation})
        return {"type": "conversation.updated", "conversation": conversation}

    async def _conversation_subscribe(self, connection: ServerConnection, command: dict) -> dict:
        conversation = self.conversations.get(command["conversation"])
        if conversation is None:
            return error(404, "conversation_not_found", "There is no such conversation.")
        stream_id = command.get("stream_id")
        self.subscribers.setdefault(conversation["id"], {})[connection] = stream_id
        responses = []
        for run in self.runs.values():
            if run.conversation == conversation["id"] and not run.over:
                responses.append(self._so_far(run))
                if connection not in run.listeners:
                    self._spawn(self._follow(connection, run, len(run.events) - 1, stream_id))
        items = self.items[conversation["id"]]
        page = {"items": items[:SNAPSHOT_ITEMS], "has_more": len(items) > SNAPSHOT_ITEMS, "responses": responses}
        return {"type": "conversation.subscribed", "conversation": conversation, **page}

    def _so_far(self, run: Run) -> dict:
        text = "".join(event.get("delta", "") for event in run.events)
        response = {"id": run.id, "status": "in_progress", "model": "stand-in", "output": []}
        return {"response": response, "text": text, "sequence_number": len(run.events) - 1}

    async def _conversation_unsubscribe(self, connection: ServerConnection, command: dict) -> dict:
        self.subscribers.get(command["conversation"], {}).pop(connection, None)
        return {"type": "conversation.unsubscribed", "conversation": {"id": command["conversation"]}}

    async def _tell(self, conversation: str, event: dict) -> None:
        for connection, stream_id in list(self.subscribers.get(conversation, {}).items()):
            await self._send(connection, {**event, **({"stream_id": stream_id} if stream_id else {})})

    async def _announce(self, run: Run, item: dict) -> None:
        added = {"type": "conversation.item.added", "conversation": run.conversation, "item": item}
        await self._tell(run.conversation, added)
        for connection, stream_id in list(self.subscribers.get(run.conversation, {}).items()):
            if connection not in run.listeners:
                self._spawn(self._follow(connection, run, -1, stream_id))

    async def _conversation_items_list(self, _, command: dict) -> dict:
        items = self.items[command["conversation"]]
        start = next((i + 1 for i, item in enumerate(items) if item["id"] == command.get("after")), 0)
        limit = command.get("limit", 20)
        return {
            "type": "conversation.items.listed",
            "conversation": command["conversation"],
            "data": items[start : start + limit],
            "has_more": len(items) > start + limit,
        }

    async def _empty_turn(self, connection: ServerConnection, command: dict) -> None:
        run = self.turns.setdefault(command["id"], Run(f"resp_{next(self.numbers)}", command["conversation"]))
        self.runs[run.id] = run
        response: dict = {"id": run.id, "model": "stand-in", "output": [], "previous_response_id": None}
        for status in ("created", "completed"):
            await run.emit(f"response.{status}", response={**response, "status": status})
        self._spawn(self._follow(connection, run, -1, command.get("stream_id")))

    async def _response_create(self, connection: ServerConnection, command: dict) -> dict | None:
        if command.get("generate") is False:
            await self._empty_turn(connection, command)
            return None
        script = command["input"].split()[0]
        if script == "!refuse":
            return error(429, "rate_limit_exceeded", "Too many turns. Try again in 2 seconds.")
        if script == "!final" and self.closing:
            await connection.close(1008, "This server is closed to you.")
            return None
        if "!silent" in command["input"]:
            return None  # as a server that hangs before it accepts
        run = self.turns.get(command["id"])
        if run is None:
            run = self.turns[command["id"]] = Run(f"resp_{next(self.numbers)}", command["conversation"])
            self.runs[run.id] = run
            script = "!summary" if command.get("task") == "summarize" else script
            self._spawn(self._answer(run, command["input"], script))
        run.listeners.add(connection)
        self._spawn(self._follow(connection, run, -1, command.get("stream_id")))
        return None

    async def _response_retrieve(self, connection: ServerConnection, command: dict) -> dict | None:
        run = self.runs.get(command["response_id"])
        if run is None:
            return error(404, "response_not_found", "There is no such response.")
        self._spawn(self._follow(connection, run, command.get("starting_after", -1), command.get("stream_id")))
        return None

    async def _response_cancel(self, _, command: dict) -> None:
        self.runs[command["response_id"]].cancelled = True

    # ── a response ──

    async def _follow(self, connection: ServerConnection, run: Run, after: int, stream_id: str | None) -> None:
        run.listeners.add(connection)
        lane = {"stream_id": stream_id} if stream_id else {}
        for position in itertools.count(after + 1):
            async with run.changed:
                while len(run.events) <= position:
                    if run.over:
                        return
                    await run.changed.wait()
            await self._send(connection, {**run.events[position], **lane})

    async def _answer(self, run: Run, text: str, script: str) -> None:
        items = self.items[run.conversation]
        items.append(message(f"msg_{next(self.numbers)}", "user", text, run.id))
        await self._announce(run, items[-1])
        response = {
            "id": run.id,
            "object": "response",
            "created_at": 1,
            "status": "in_progress",
            "model": "stand-in",
            "output": [],
        }
        self.conversations[run.conversation]["running_response"] = run.id
        if script == "!queue":
            await self._queue(run, response)
        await run.emit("response.created", response=response)
        if script == "!summary":
            await run.emit(
                "response.in_progress", response={**response, "tokenwire": {"summarize": {"parts": 4, "done": 1}}}
            )
            await self._step()
        said, item_id = "", run.id.replace("resp_", "msg_")
        for word in re.findall(r"\s*\S+\s*$|\s*\S+", text):
            if run.cancelled:
                break
            said += word
            await run.emit("response.output_text.delta", item_id=item_id, output_index=0, content_index=0, delta=word)
            if script == "!cut" and len(said) > 20 and run.id not in self.played:
                self.played.add(run.id)
                for connection in list(self.connections):
                    connection.transport.abort()
            if script == "!fail" and len(said) > 12 and text not in self.played:
                self.played.add(text)
                await self._fail(run, response)
                return
            await asyncio.sleep(self.word_seconds)
        status = "incomplete" if run.cancelled else "completed"
        item = message(item_id, "assistant", said, run.id, status)
        items.append(item)
        self.conversations[run.conversation]["running_response"] = None
        why = {"incomplete_details": {"reason": "cancelled"}} if run.cancelled else {}
        await run.emit(f"response.{status}", response={**response, "status": status, "output": [item], **why})

    async def _queue(self, run: Run, response: dict) -> None:
        queued = {**response, "status": "queued"}
        await run.emit(
            "response.queued",
            response=queued,
            tokenwire={"reason": "admission", "position": 3, "estimated_wait_ms": 4000},
        )
        await self._step()
        await run.emit("response.queued", response=queued, tokenwire={"reason": "model_loading", "progress": 0.4})
        await self._step()

    def go_on(self) -> None:
        """What waits, as the test has seen it (a place in line, a model that is loaded, a summary's part), is over."""
        self.steps.release()

    async def _step(self) -> None:
        while not self.steps.acquire(blocking=False):  # noqa: ASYNC110 a test's thread ends it
            await asyncio.sleep(0.01)

    async def _fail(self, run: Run, response: dict) -> None:
        self.conversations[run.conversation]["running_response"] = None
        failure = {"code": "engine_died", "message": "The model stopped working."}
        await run.emit("response.failed", response={**response, "status": "failed", "error": failure})


def message(item_id: str, role: str, text: str, response_id: str, status: str = "completed") -> dict:
    content = [{"type": "input_text" if role == "user" else "output_text", "text": text}]
    return {
        "id": item_id,
        "type": "message",
        "role": role,
        "status": status,
        "content": content,
        "response_id": response_id,
    }


def error(status: int, code: str, text: str) -> dict:
    return {
        "type": "error",
        "status": status,
        "error": {"type": "invalid_request_error", "code": code, "message": text, "param": None},
    }


if __name__ == "__main__":
    stand_in = StandIn(word_seconds=0.05).start(int(sys.argv[1]) if len(sys.argv) > 1 else 8123)
    print(stand_in.url, flush=True)
    stand_in.thread.join()
