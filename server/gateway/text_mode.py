"""`/chat`: plain text in, plain text out, for wscat and the simplest client.

Each frame in is a user's turn. The answer's text comes back as it is made; an empty frame ends it. Errors come as
`[error] …`. All turns of a connection are one conversation.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from protocol.commands import ConversationCreate, plain_turn
from protocol.errors import ProtocolError
from server.access.auth import User
from server.access.sign_in import SignOut
from server.chat.client import LocalResponses
from server.chat.generation import Generation
from server.chat.hub import Channel, Subscription
from server.chat.service import Chat
from server.config import Config
from server.gateway.first_frame import SIGNED_OUT
from server.gateway.outbox import Outbox

logger = logging.getLogger(__name__)

MAX_WAITING_LINES: Final = 64  # lines pasted during an answer


class TextConnection:
    """A client of plain text (the chat layer's `Client`, the hub's `Subscriber`)."""

    def __init__(self, websocket: ServerConnection, user: User, chat: Chat, config: Config) -> None:
        self.user = user
        self.local = LocalResponses(config.limits.max_local_responses)
        self._websocket = websocket
        self._chat = chat
        self._outbox = Outbox(websocket, config.limits.send_timeout_s)
        self._subscription: Subscription | None = None
        self._generation: Generation | None = None  # the newest
        self._events = asyncio.Event()
        self._conversation: str | None = None
        self._max_waiting_chars = config.limits.max_waiting_chars
        self._waiting_chars = 0
        self._is_signed_out = False
        self._is_revoked = False

    async def run(self) -> None:
        """Answer turn after turn until the socket closes. Raises ConnectionClosed.

        Reading goes on during an answer: else nobody would notice that the client leaves, or answer its pings.
        """
        lines: asyncio.Queue[str | bytes] = asyncio.Queue(MAX_WAITING_LINES)
        answering = asyncio.create_task(self._answer_all(lines), name=f"text {self._websocket.id}")
        try:
            async for frame in self._websocket:
                if self._is_signed_out:
                    continue
                if lines.full() or self._waiting_chars + len(frame) > self._max_waiting_chars:
                    await self._say(f"[error] {lines.qsize()} lines wait for an answer; this one is dropped")
                else:
                    self._waiting_chars += len(frame)
                    lines.put_nowait(frame)
        finally:
            answering.cancel()
            await asyncio.wait([answering])
            if self._subscription is not None:
                self._subscription.close()

    async def _answer_all(self, lines: asyncio.Queue[str | bytes]) -> None:
        try:
            while True:
                frame = await lines.get()
                self._waiting_chars -= len(frame)
                if not self._is_signed_out:
                    await self._take_turn(frame)
        except ConnectionClosed:
            pass  # the reader sees it too, and ends the handler
        except Exception:
            logger.exception("text connection failed", extra={"connection": str(self._websocket.id)})
            await self._websocket.close(CloseCode.INTERNAL_ERROR, "internal error")

    async def _take_turn(self, frame: str | bytes) -> None:
        try:
            await self._answer(frame.decode("utf-8") if isinstance(frame, bytes) else frame)
        except UnicodeDecodeError:
            await self._say("[error] the frame is not valid UTF-8; send text")
        except ProtocolError as error:
            await self._say(f"[error] {error.message}")
        await self._say("")

    async def _answer(self, text: str) -> None:
        """Stream one answer. Raises ProtocolError where the turn is refused."""
        command = plain_turn(text)
        if self._conversation is None:
            self._conversation = (await self._chat.new_conversation(self.user, ConversationCreate())).id
        command = msgspec.structs.replace(command, conversation=self._conversation)
        try:
            self._generation = generation = await self._chat.create(self, command)
        except ProtocolError as error:
            if error.code == "conversation_not_found":
                self._conversation = None  # gone: the client is told, and its next text begins a new one
            raise
        if generation is None or self._subscription is None:
            return
        if self._is_revoked:
            generation.cancel()
        # Not until the response has ended here: another gateway may go on with it on the same channel.
        while not generation.channel.is_closed:
            self._events.clear()
            await self._say_new(self._subscription)
            await self._events.wait()
        await self._say_new(self._subscription)
        if generation.error is not None:
            await self._say(f"[error] {generation.error}")
        elif generation.was_left:
            await self._say("[error] the server stops in the middle of this answer; connect again")

    async def _say_new(self, subscription: Subscription) -> None:
        text = "".join(event.text for event in subscription.take_events())
        if text:
            await self._say(text)

    async def _say(self, text: str) -> None:
        await self._outbox.write(text.encode())

    def is_busy(self) -> bool:
        """As `Connection.is_busy`."""
        return self._generation is not None and not self._generation.channel.is_closed

    async def sign_out(self, why: SignOut) -> None:
        """As `Connection.sign_out`."""
        self._is_signed_out = True
        self._is_revoked = why is SignOut.REVOKED
        if self._is_revoked and self._generation is not None:
            self._generation.cancel()
        await self._say(f"[error] the sign-in of this connection is {why}; sign in again")
        await self._websocket.close(SIGNED_OUT, why)

    # The chat layer's view

    def send(self, frame: bytes) -> None:
        """Nothing but answers' text goes out here; `create` sends nothing."""

    async def write(self, frame: bytes) -> None:
        """As `send`."""

    def subscribe(self, channel: Channel, *, cursor: int, stream_id: str | None) -> Subscription:
        self._subscription = Subscription(channel, self, cursor=cursor, stream_id=stream_id)
        channel.add(self._subscription)
        return self._subscription

    def is_subscribed(self, response_id: str) -> bool:
        return self._subscription is not None and self._subscription.channel.response_id == response_id

    def wake(self, subscription: Subscription) -> None:  # noqa: ARG002 there is one at a time
        self._events.set()
