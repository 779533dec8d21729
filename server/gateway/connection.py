"""One socket of `/v1/responses`: frames to commands, answers and events to frames."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from typing import Final

import msgspec
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from protocol.commands import Command, ConversationCreate, ResponseCancel, ResponseCreate, parse_command
from protocol.errors import ProtocolError
from protocol.events import error_event
from server.access.auth import User, unauthorized
from server.access.sign_in import SignOut
from server.chat.client import ClientGoneError, LocalResponses
from server.chat.generation import Generation
from server.chat.hub import Channel, Subscription
from server.chat.service import Chat
from server.config import Config
from server.gateway.first_frame import SIGNED_OUT
from server.gateway.lanes import Lanes
from server.gateway.outbox import Outbox
from server.observe.metrics import Metrics

LONG_PARSE_S: Final = 0.01  # a frame of a million brackets takes ten times that
ENDING_S: Final = 5.0  # what a revoked key has running gets this long to end before its socket closes


class Connection:
    """A signed-in client of the protocol (the chat layer's `Client`, the hub's `Subscriber`)."""

    def __init__(self, websocket: ServerConnection, user: User, chat: Chat, config: Config, metrics: Metrics) -> None:
        self.user = user
        self.local = LocalResponses(config.limits.max_local_responses)
        self._websocket = websocket
        self._chat = chat
        self._metrics = metrics
        self._outbox = Outbox(websocket, config.limits.send_timeout_s)
        self._lanes = Lanes(config.limits, self._create, self._fail)
        # Of what runs or is not yet sent; made with the first one, since most connections are idle.
        self._subscriptions: weakref.WeakSet[Subscription] | None = None
        self._conversation: str | None = None  # of plain-text turns; made on first use
        self._parse_s = 0.0  # what the newest frame took
        self._is_signed_out = False

    async def run(self) -> None:
        """Serve until the socket closes. Raises ConnectionClosed."""
        try:
            async for frame in self._websocket:
                await self._receive(frame)
                await self._outbox.wait_for_room()
                # Nothing above need have waited: others have their turn between two frames, and after a frame that
                # took long as much time as it took.
                await asyncio.sleep(self._parse_s if self._parse_s > LONG_PARSE_S else 0)
        finally:
            await self._lanes.close()
            for subscription in tuple(self._subscriptions or ()):
                subscription.close()  # before anything that may wait for Redis: an unstored answer ends by it
            await self._chat.leave(self)
            self._subscriptions = None  # each holds a whole answer
            await self._outbox.close()

    def is_busy(self) -> bool:
        """Whether something is done for the client although it says nothing."""
        return self._lanes.in_flight > 0 or bool(self._subscriptions)

    async def retire(self) -> None:
        """The server stops: let running turns end, say why, and close so that clients connect again (1012)."""
        await self._lanes.idle()
        if not self._lanes.was_left:  # between turns: in the middle of one, an error would read as its end
            text = "the server restarts; connect again"
            self.send(error_event(ProtocolError("websocket_connection_limit_reached", text, retry_after_ms=1000)))
        await self._websocket.close(CloseCode.SERVICE_RESTART, "restart")

    async def sign_out(self, why: SignOut) -> None:
        """Close (4401): its key was revoked or its time is up. Frames that still come are ignored.

        What a revoked key has running ends, too; after a sign-in that has only expired, the client comes back for it.
        """
        self._is_signed_out = True
        self._lanes.stop(cancel=why is SignOut.REVOKED)
        self.send(error_event(unauthorized(f"the sign-in of this connection is {why}; sign in again")))
        if why is SignOut.REVOKED:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ENDING_S):
                    await self._lanes.idle()
        await self._websocket.close(SIGNED_OUT, why)

    # The chat layer's view

    def send(self, frame: bytes) -> None:
        self._outbox.send(frame)

    async def write(self, frame: bytes) -> None:
        try:
            await self._outbox.write(frame)
        except ConnectionClosed as error:
            raise ClientGoneError from error

    def subscribe(self, channel: Channel, *, cursor: int, stream_id: str | None) -> Subscription:
        subscription = Subscription(channel, self, cursor=cursor, stream_id=stream_id)
        channel.add(subscription)
        if self._subscriptions is None:
            self._subscriptions = weakref.WeakSet()
        self._subscriptions.add(subscription)
        self.wake(subscription)
        return subscription

    def is_subscribed(self, response_id: str) -> bool:
        return any(
            subscription.channel.response_id == response_id
            for subscription in self._subscriptions or ()
            if not subscription.is_closed
        )

    def wake(self, subscription: Subscription) -> None:
        self._outbox.wake(subscription)

    # Frames in

    async def _receive(self, frame: str | bytes) -> None:
        """Do what one frame asks; whatever is wrong with it becomes an error event."""
        if self._is_signed_out:
            return
        command: Command | None = None
        try:
            command = self._parse(frame)
            match command:
                case ResponseCreate():
                    self._lanes.put(command)
                case ResponseCancel(response_id=None):
                    await self._cancel_lane(command)
                case _:
                    await self._chat.handle(self, command)
        except ProtocolError as error:
            self._fail(error, command)
        except ClientGoneError:
            pass  # reading ends next

    def _parse(self, frame: str | bytes) -> Command:
        began = time.monotonic()
        try:
            return parse_command(frame)
        finally:
            self._parse_s = time.monotonic() - began

    async def _create(self, command: ResponseCreate) -> Generation | None:
        await self._outbox.wait_for_room()  # turns that wait make no answers for a client that does not read
        if not command.plain:
            return await self._chat.create(self, command)
        command = msgspec.structs.replace(command, conversation=await self._current_conversation())
        try:
            return await self._chat.create(self, command)
        except ProtocolError as error:
            if error.code == "conversation_not_found":
                self._conversation = None  # gone: the client is told, and its next text begins a new one
            raise

    async def _current_conversation(self) -> str:
        if self._conversation is None:
            self._conversation = (await self._chat.new_conversation(self.user, ConversationCreate())).id
        return self._conversation

    async def _cancel_lane(self, command: ResponseCancel) -> None:
        """Stop what runs on the command's lane; without any, answer with the end of what ran last."""
        lane = self._lanes.get(command.stream_id)
        if lane is not None and lane.is_busy and lane.running is None:
            lane.is_cancelled = True
            return
        if lane is None or lane.last is None:
            raise ProtocolError("response_not_found", "nothing runs on this lane", param="response_id")
        await self._chat.handle(self, msgspec.structs.replace(command, response_id=lane.last))

    def _fail(self, error: ProtocolError, command: Command | None) -> None:
        """Tell the client; what an unstored turn was to continue is evicted (OpenAI: WebSocket mode, store:false)."""
        self._metrics.protocol_error(error.code)
        follows = command.previous_response_id if isinstance(command, ResponseCreate) else error.previous_response_id
        self.local.discard(follows or "")
        self.send(error_event(error, command))
