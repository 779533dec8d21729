"""Sign-in by the first frame, for clients that can set no header: `session.update` with a token, and soon."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from protocol.commands import Command, SessionUpdate, parse_command
from protocol.errors import ProtocolError
from protocol.events import answer, error_event
from server.access.auth import User, unauthorized
from server.access.sign_in import WHERE_TO, SignIn
from server.chat.errors import translate
from server.chat.session import wire_session
from server.gateway.sockets import GatewayConnection

logger = logging.getLogger(__name__)

SIGNED_OUT: Final = 4401  # close code: sign in (again)
SIGN_IN_TOO_LATE: Final = 4408
MAX_FRAME_CHARS: Final = 32_768  # a token has 16,384 at most


async def sign_in_by_frame(
    connection: GatewayConnection, sign_in: SignIn, take_place: Callable[[User], Awaitable[None]], timeout_s: float
) -> User:
    """Return who the first frame says that it is; the client has been told.

    1. No frame in time: closed with 4408.
    2. Any other command, or a wrong token: an error, and closed with 4401.
    3. The token cannot be checked now, or its user has connections enough: an error, and closed with 1013.

    take_place: takes one of the user's connections, as far as they are limited; raises ProtocolError.

    Raises ConnectionClosed, also where we close it.
    """
    command: Command | None = None
    connection.hold(True)
    try:
        async with asyncio.timeout(timeout_s):
            frame = await connection.recv()
        command = _command(frame)
        token = command.token if isinstance(command, SessionUpdate) else None
        if token is None:
            raise unauthorized(f"sign in first: take your key or token and {WHERE_TO}")
        user = await sign_in.check(token)
        await take_place(user)
    except TimeoutError:
        await _close(connection, SIGN_IN_TOO_LATE, f"sign in within {timeout_s:g} s")  # 1
    except ConnectionClosed:
        raise
    except Exception as error:  # noqa: BLE001 translated for the client; what nobody expected is logged there
        fault = translate(error)
        await connection.send(error_event(fault, command), text=True)
        code = CloseCode.TRY_AGAIN_LATER if fault.retry_after_ms else SIGNED_OUT
        await _close(connection, code, "sign in" if code == SIGNED_OUT else "try again later")  # 2, 3
    else:
        connection.hold(False)
        await connection.send(answer("session.updated", command, session=wire_session(user)), text=True)
        return user
    raise AssertionError("closing raises")


async def _close(connection: GatewayConnection, code: int, reason: str) -> NoReturn:
    """Close, and pass over what was sent behind the frame: the client's own close frame is behind all of it.

    Raises ConnectionClosed.
    """
    connection.hold(False)
    closing = asyncio.create_task(connection.close(code, reason), name=f"close {connection.id}")
    try:
        while True:
            await connection.recv()
    finally:
        await closing


def _command(frame: str | bytes) -> Command:
    if len(frame) > MAX_FRAME_CHARS:
        raise ProtocolError(
            "unauthorized", f"sign in first: a frame with a token has {MAX_FRAME_CHARS} characters at most"
        )
    return parse_command(frame)
