"""The port: accepts connections, answers plain HTTP, and hands WebSockets to their handlers."""

from __future__ import annotations

import asyncio
import errno
import functools
import ipaddress
import logging
import math
import resource
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed, InvalidHeader, InvalidUpgrade
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.protocol import CONNECTING, OPEN
from websockets.typing import Subprotocol

from protocol.errors import ProtocolError, excerpt
from server.access.access import Access
from server.access.auth import User, select_subprotocol
from server.access.limits import Hold
from server.chat.errors import translate
from server.config import Config
from server.errors import StartError
from server.gateway.addresses import Addresses, client_address
from server.gateway.first_frame import sign_in_by_frame
from server.gateway.http import (
    OPEN_PATHS,
    HttpReply,
    HttpRequest,
    HttpRoutes,
    error_reply,
    protocol_error_reply,
    sign_in_first,
)
from server.gateway.origins import refusal
from server.gateway.sockets import GatewayConnection
from server.observe.metrics import Metrics

logger = logging.getLogger(__name__)

SocketHandler = Callable[[GatewayConnection, User], Awaitable[None]]

BACKLOG: Final = 1024  # connections that the kernel holds while we are busy; a restart brings all clients at once
CLOSE_TIMEOUT_S: Final = 5.0  # a client may take this long to answer a close frame
SPARE_FILES: Final = 256  # descriptors besides client connections: Redis, engines, logs, the page
RETRY_AFTER_S: Final = 5  # for clients that found no place
MAX_SWEEP_S: Final = 60.0  # between looks for idle connections
FRAME_SIGN_IN_PATH: Final = "/v1/responses"  # where a client may sign in by its first frame


class Listener:
    """Serves one port. `sockets` maps WebSocket paths to handlers; everything else is `http`'s."""

    def __init__(
        self,
        config: Config,
        http: HttpRoutes,
        sockets: Mapping[str, SocketHandler],
        metrics: Metrics,
        access: Access,
    ) -> None:
        self._sign_in = access.sign_in
        self._limits = access.limits
        self._leaving: set[asyncio.Task[None]] = set()  # connections whose places are being given back
        self._config = config
        self._http = http
        self._handlers = sockets
        self._metrics = metrics
        self._all: set[GatewayConnection] = set()
        self._admitted = 0
        self._addresses = Addresses(config.limits)
        self._proxies = tuple(ipaddress.ip_network(proxy) for proxy in config.trusted_proxies)
        self._sweeper: asyncio.Task[None] | None = None
        self._is_draining = False
        self._server: Server | None = None

    @property
    def connections(self) -> list[GatewayConnection]:
        """The open WebSocket connections."""
        return [connection for connection in self._all if connection.protocol.state is OPEN]

    async def start(self) -> str:
        """Bind and accept; return the server's URL. Raises StartError where the address cannot be had."""
        config, limits = self._config, self._config.limits
        _raise_file_limit(limits.max_connections + SPARE_FILES)
        server = serve(
            self._handle,
            config.host,
            config.port,
            process_request=self._process_request,
            process_response=_in_our_words,
            select_subprotocol=_select_subprotocol,
            server_header=None,  # no version numbers for strangers
            compression=None,  # 44 KiB a connection, and tokens are too short to gain
            max_size=limits.max_frame_bytes,
            open_timeout=limits.open_timeout_s,
            ping_interval=limits.ping_interval_s,
            ping_timeout=limits.ping_timeout_s,
            close_timeout=CLOSE_TIMEOUT_S,
            create_connection=functools.partial(GatewayConnection, on_made=self._greet, on_lost=self._forget),  # type: ignore[arg-type]  # a factory, which the documentation allows; the annotation says subclass
            backlog=BACKLOG,
        )
        try:
            self._server = await server
        except OSError as error:
            raise StartError(_bind_fault(config, error)) from None
        self._sweeper = asyncio.create_task(self._sweep(), name="idle connections")
        return _url(self._server.sockets[0])

    def drain(self) -> None:
        """Take no new sockets: they get 503. Plain HTTP goes on: probes must hear why we are not ready."""
        self._is_draining = True

    def close(self) -> None:
        """Stop accepting; open sockets stay until `wait_closed`. New handshakes get 503."""
        if self._server is not None:
            self._server.close(close_connections=False)
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def wait_closed(self) -> None:
        """Close the remaining sockets with 1012 (service restart); return when all are gone, a few seconds at most."""
        self.close()
        server = self._server
        if server is None:
            return
        # 1. Sockets are told; what is not a socket yet has nothing to lose.
        closing = [asyncio.create_task(c.close(CloseCode.SERVICE_RESTART, "restart")) for c in self.connections]
        for connection in list(self._all):
            if connection.protocol.state is CONNECTING:
                connection.transport.abort()
        if closing:
            await asyncio.wait(closing)  # bounded by close_timeout
        # 2. Handlers end because their connection did. One that hangs is a fault of ours, and must not keep us.
        try:
            await asyncio.wait_for(server.wait_closed(), CLOSE_TIMEOUT_S)
        except TimeoutError:
            hanging = list(server.handler_tasks)
            if hanging:  # none: only their sockets are slow to go
                logger.warning("connection handlers hang; cancelled", extra={"count": len(hanging)})
            for task in hanging:
                task.cancel()
            await server.wait_closed()
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def _sweep(self) -> None:
        """Close what has been idle too long. Clients reconnect after 1001, if anyone is there."""
        timeout_s = self._config.limits.idle_timeout_s
        while True:
            await asyncio.sleep(min(timeout_s / 4, MAX_SWEEP_S))
            idle = [connection for connection in self.connections if connection.idle_s > timeout_s]
            if idle:
                closing = [connection.close(CloseCode.GOING_AWAY, "idle") for connection in idle]
                await asyncio.gather(*closing, return_exceptions=True)

    def _greet(self, connection: GatewayConnection, peer: str) -> bool:
        """Count a TCP connection; return whether it may stay."""
        self._all.add(connection)
        may_stay = self._addresses.begin_handshake(peer)
        if not may_stay:
            logger.info("too many handshakes", extra={"address": peer})
        return may_stay

    def _forget(self, connection: GatewayConnection) -> None:
        self._all.discard(connection)
        self._end_handshake(connection)
        self._admitted -= connection.admitted
        if connection.admitted:
            self._addresses.disconnect(connection.address)
        if connection.place is not None and connection.place.quotas:
            task = asyncio.create_task(self._give_back(connection.place), name=f"leave {connection.id}")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _give_back(self, place: Hold) -> None:
        try:
            await self._limits.close(place)
        except Exception as error:  # noqa: BLE001 its lease ends by itself
            logger.warning("a connection's place could not be given back: %s", error)

    def _end_handshake(self, connection: GatewayConnection) -> None:
        if not connection.has_come:
            connection.has_come = True
            self._addresses.end_handshake(connection.peer)

    def _refuse_flood(self, connection: GatewayConnection, headers: Headers) -> HttpReply | None:
        """Note whose request it is; refuse it where that address sends too many."""
        forwarded = ",".join(headers.get_all("X-Forwarded-For"))
        connection.address = client_address(connection.peer, forwarded, self._proxies)
        wait_s = self._addresses.request(connection.address)
        if wait_s is None:
            return None
        self._metrics.protocol_error("rate_limit_exceeded")
        return _too_many("this address sends too many requests", wait_s)

    async def _take_place(self, connection: GatewayConnection, user: User) -> None:
        """Take one of the user's connections. Raises ProtocolError, and what the store raises."""
        place = await self._limits.open_connection(user, str(connection.id))
        if connection in self._all:
            connection.place = place
        else:  # it left meanwhile
            await self._give_back(place)

    async def _process_request(self, connection: ServerConnection, request: Request) -> Response | None:
        """Decide on a request whose head has been read.

        0. Its address sends too many: 429.
        1. A page on a foreign origin, or a host name that is not ours: 403, except for probes.
        2. Sign-in that is wrong: 401. The page and the probes need none, and look at none: it may be a proxy's.
        3. Plain HTTP: `HttpRoutes`.
        4. A WebSocket path that does not exist: 404; nobody signed in where the first frame cannot do it: 401.
        5. The server stops, or every place is taken: 503; the address's or the user's own places are: 429.
        6. Otherwise None: the handshake goes on.
        """
        assert isinstance(connection, GatewayConnection)
        path = request.path.partition("?")[0]
        self._end_handshake(connection)
        reply = self._refuse_flood(connection, request.headers)  # 0
        if reply is None and path not in OPEN_PATHS:
            reply = self._refuse_stranger(request.headers)  # 1
        if reply is None and (path in self._handlers or self._http.is_private(path)):
            try:
                connection.user = await self._sign_in.handshake(_plain(request.headers))
            except Exception as error:  # noqa: BLE001 translated for the client; what nobody expected is logged there
                reply = self._refuse_sign_in(connection, translate(error))  # 2
        if reply is None and not _wants_websocket(request):
            reply = await self._http.answer(
                HttpRequest.parse(request.method, request.path, request.headers, connection.user)
            )  # 3
        elif reply is None:
            reply = await self._admit(connection, path)  # 4, 5
        return None if reply is None else reply.to_response(head_only=request.method == "HEAD")  # 6

    def _refuse_stranger(self, headers: Headers) -> HttpReply | None:
        hosts, origins = headers.get_all("Host"), headers.get_all("Origin")
        if len(hosts) > 1 or len(origins) > 1:
            return error_reply(400, "invalid_request", "send one Host and one Origin header at most")
        reason = refusal(hosts[0] if hosts else None, origins[0] if origins else None, self._config)
        return None if reason is None else error_reply(403, "forbidden_origin", reason)

    def _refuse_sign_in(self, connection: GatewayConnection, error: ProtocolError) -> HttpReply:
        self._metrics.protocol_error(error.code)
        logger.info("sign-in refused: %s", error.message, extra={"connection": str(connection.id)})
        return protocol_error_reply(error)

    async def _admit(self, connection: GatewayConnection, path: str) -> HttpReply | None:
        if path not in self._handlers:
            text = f"there is no WebSocket at {excerpt(path)}; there is one at {', '.join(self._handlers)}"
            return error_reply(404, "not_found", text)
        if connection.user is None and path != FRAME_SIGN_IN_PATH:
            return protocol_error_reply(sign_in_first())
        if self._is_draining:
            return _no_place("the server is stopping; connect again")
        if self._admitted >= self._config.limits.max_connections:
            return _no_place("every connection place is taken; try again later")
        if not self._addresses.connect(connection.address):
            logger.info("too many connections", extra={"address": connection.address})
            return _too_many("this address has as many connections as it may", RETRY_AFTER_S)
        connection.admitted = True
        self._admitted += 1
        if connection.user is not None:
            try:
                await self._take_place(connection, connection.user)
            except Exception as error:  # noqa: BLE001 as above
                return self._refuse_sign_in(connection, translate(error))
        return None

    async def _handle(self, connection: ServerConnection) -> None:
        """Run one socket's handler. A client that vanishes is no fault; a bug of ours closes this socket alone."""
        assert isinstance(connection, GatewayConnection)
        assert connection.request is not None
        path = connection.request.path.partition("?")[0]
        began = time.monotonic()
        self._metrics.connection_opened()
        try:
            if connection.user is None:
                timeout_s = self._config.limits.sign_in_timeout_s
                take_place = functools.partial(self._take_place, connection)
                connection.user = await sign_in_by_frame(connection, self._sign_in, take_place, timeout_s)
            await self._handlers[path](connection, connection.user)
        except ConnectionClosed:
            pass  # the handler need not tell clients that leave from clients that drop
        except Exception:
            logger.exception("connection handler failed", extra={"connection": str(connection.id), "path": path})
            await connection.close(CloseCode.INTERNAL_ERROR, "internal error")
        finally:
            self._metrics.connection_closed()
            _log_end(connection, path, time.monotonic() - began)


def _no_place(why: str) -> HttpReply:
    return error_reply(503, "server_is_overloaded", why, headers={"Retry-After": str(RETRY_AFTER_S)})


def _too_many(why: str, wait_s: float) -> HttpReply:
    return protocol_error_reply(ProtocolError("rate_limit_exceeded", why, retry_after_ms=math.ceil(wait_s * 1000)))


def _log_end(connection: ServerConnection, path: str, seconds: float) -> None:
    fields = {
        "connection": str(connection.id),
        "path": path,
        "seconds": round(seconds, 3),
        "code": connection.close_code,
    }
    logger.info("connection ended", extra=fields)


def _wants_websocket(request: Request) -> bool:
    upgrades = ",".join(request.headers.get_all("Upgrade")).lower()
    return request.method == "GET" and "websocket" in (name.strip() for name in upgrades.split(","))


def _in_our_words(connection: ServerConnection, _request: Request, response: Response) -> Response | None:
    """Replace websockets' own answer to a handshake that is none: it repeats whole headers, with keys in them."""
    fault = connection.protocol.handshake_exc
    if fault is None:
        return None
    text = "this is no WebSocket handshake"
    if isinstance(fault, InvalidHeader):
        text += f": the header {excerpt(fault.name, 60)} is missing or wrong"
    headers = {"Upgrade": "websocket"} if isinstance(fault, InvalidUpgrade) else {}
    return error_reply(response.status_code, "invalid_request", text, headers=headers).to_response()


def _plain(headers: Headers) -> dict[str, str]:
    """Headers by lower-case name; repeated ones joined, as RFC 9110 section 5.3 has it."""
    return {name: ", ".join(headers.get_all(name)) for name in {key.lower() for key, _ in headers.raw_items()}}


def _select_subprotocol(_connection: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    chosen = select_subprotocol(offered)
    return None if chosen is None else Subprotocol(chosen)


def _raise_file_limit(wanted: int) -> None:
    """Lift the soft limit on open files towards the hard one: the usual 1,024 is far below max_connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ceiling = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < ceiling:
        resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))


_BIND_FAULTS: Final = {
    errno.EADDRINUSE: "is in use; stop the other server or choose another port with --port",
    errno.EACCES: "needs more rights; choose a port of 1024 or above with --port",
    errno.EADDRNOTAVAIL: "cannot be served: that is no address of this machine; change --host",
}


def _bind_fault(config: Config, error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"host {config.host!r} has no address; change --host"
    fault = _BIND_FAULTS.get(error.errno or 0, f"cannot be served: {error.strerror}")
    return f"port {config.port} on {config.host} {fault}"


def _url(bound: Any) -> str:
    """The URL of a bound socket; for one on all addresses, the loopback one, which a person can open."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 compared, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
