"""Plain HTTP on the same port: the page, health, metrics and the JSON twins of the read commands."""

from __future__ import annotations

import email.utils
import http
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import parse_qs, unquote

import orjson
from websockets.datastructures import Headers
from websockets.http11 import Response

from protocol.commands import DEFAULT_PAGE, MAX_PAGE
from protocol.errors import ERROR_CODES, ProtocolError, excerpt
from server.access.auth import Right, User, unauthorized
from server.gateway.page import Page, security_headers
from server.observe.metrics import CONTENT_TYPE, Metrics

logger = logging.getLogger(__name__)

SOCKET_PATHS: Final = ("/v1/responses", "/chat")
# Probes come with whatever host name their network gave us; whoever asks for metrics by it has to sign in, or nobody.
OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics"})
PRIVATE_PREFIXES: Final = ("/v1/", "/metrics")

_ID: Final = r"([^/]{1,200})"


class Queries(Protocol):
    """What the JSON routes ask; every method may raise ProtocolError."""

    async def models(self, user: User) -> dict[str, Any]: ...
    async def limits(self, user: User) -> dict[str, Any]: ...
    async def response(self, user: User, id: str) -> bytes: ...
    async def conversations(self, user: User, after: str | None, limit: int) -> dict[str, Any]: ...
    async def conversation(self, user: User, id: str) -> dict[str, Any]: ...
    async def items(self, user: User, conversation: str, after: str | None, limit: int) -> dict[str, Any]: ...


class Readiness(Protocol):
    """Whether new work is welcome."""

    def reasons(self) -> list[str]:
        """Return why not, in plain words; empty when ready."""
        ...


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request without a body. path is decoded; user is None where nobody signed in."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]  # lower-case names
    user: User | None

    @classmethod
    def parse(cls, method: str, target: str, headers: Headers, user: User | None) -> HttpRequest:
        """Split a request target; of repeated headers the last one counts."""
        path, _, query = target.partition("?")
        lowered = {name.lower(): value for name, value in headers.raw_items()}
        return cls(method, unquote(path, errors="replace"), query, lowered, user)


@dataclass(frozen=True, slots=True)
class HttpReply:
    """What goes back; Date, Content-Length and Connection are added on the way out."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_response(self, *, head_only: bool = False) -> Response:
        """Return it as websockets sends it. head_only: leave the body out, for HEAD."""
        headers = Headers({"Date": email.utils.formatdate(usegmt=True), "Connection": "close"})
        if self.status not in {http.HTTPStatus.NO_CONTENT, http.HTTPStatus.NOT_MODIFIED}:
            headers["Content-Type"] = self.content_type
            headers["Content-Length"] = str(len(self.body))
        headers["X-Content-Type-Options"] = "nosniff"
        for name, value in self.headers.items():
            if name in headers:
                del headers[name]  # Headers appends: a second Connection would be ambiguous
            headers[name] = value
        phrase = http.HTTPStatus(self.status).phrase
        return Response(self.status, phrase, headers, b"" if head_only else self.body)


def json_reply(content: object, status: int = 200) -> HttpReply:
    """A JSON answer; what it says may be private or outdated a moment later, so nothing keeps it."""
    body = content if isinstance(content, bytes) else orjson.dumps(content)
    return HttpReply(status, body, headers={"Cache-Control": "no-store"})


def error_reply(
    status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None, param: str | None = None
) -> HttpReply:
    """A JSON error in the shape that OpenAI's HTTP API uses."""
    kind = ERROR_CODES[code][1] if code in ERROR_CODES else "invalid_request_error"
    body = orjson.dumps({"error": {"type": kind, "code": code, "message": message, "param": param}})
    return HttpReply(status, body, headers={"Cache-Control": "no-store", **(headers or {})})


def protocol_error_reply(error: ProtocolError) -> HttpReply:
    """A ProtocolError over HTTP; where waiting helps, in whole seconds and in milliseconds."""
    headers = {"WWW-Authenticate": "Bearer"} if error.code == "unauthorized" else {}
    if error.retry_after_ms is not None:
        headers = {"Retry-After": str(-(-error.retry_after_ms // 1000)), "Retry-After-Ms": str(error.retry_after_ms)}
    return error_reply(error.status, error.code, error.message, headers=headers, param=error.param)


def upgrade_required(path: str) -> HttpReply:
    """The answer to plain HTTP on a WebSocket path; Codex and the SDKs read its status and its error."""
    message = f"{path} speaks WebSocket only: connect with ws:// (GET with Upgrade: websocket), not with plain HTTP"
    # RFC 9110 section 7.8: who sends Upgrade must name it in Connection, too.
    headers = {"Upgrade": "websocket", "Connection": "Upgrade, close"}
    return error_reply(http.HTTPStatus.UPGRADE_REQUIRED, "upgrade_required", message, headers=headers)


Route = Callable[[HttpRequest, re.Match[str]], Awaitable[HttpReply]]


class HttpRoutes:
    """Answers every request that is not an upgrade."""

    def __init__(self, queries: Queries, readiness: Readiness, metrics: Metrics, page: Page | None = None) -> None:
        self._queries = queries
        self._readiness = readiness
        self._metrics = metrics
        self._page = page or Page()
        table: list[tuple[str, Route]] = [
            ("/healthz", self._healthz),
            ("/readyz", self._readyz),
            ("/metrics", self._metrics_text),
            ("/v1/models", self._models),
            ("/v1/limits", self._limits),
            (f"/v1/responses/{_ID}", self._response),
            ("/v1/conversations", self._conversations),
            (f"/v1/conversations/{_ID}", self._conversation),
            (f"/v1/conversations/{_ID}/items", self._items),
        ]
        self._table = [(re.compile(pattern), route) for pattern, route in table]

    def is_private(self, path: str) -> bool:
        """Whether an answer depends on who asks: everything but the page and the probes."""
        return unquote(path, errors="replace").startswith(PRIVATE_PREFIXES)

    async def answer(self, request: HttpRequest) -> HttpReply:
        """Return the reply to one request; never raises for anything that a client can send.

        1. WebSocket paths need an upgrade, whatever the method.
        2. A path that does not exist is 404 for every method.
        3. Everything else is read only.
        """
        if request.path in SOCKET_PATHS:
            return upgrade_required(request.path)  # 1
        call = self._find(request)
        if call is None:
            return error_reply(404, "not_found", f"there is nothing at {excerpt(request.path)}")  # 2
        if request.method not in {"GET", "HEAD"}:
            text = f"{excerpt(request.method, 20)} is not supported here; use GET, or commands over /v1/responses"
            return error_reply(405, "method_not_allowed", text, headers={"Allow": "GET, HEAD"})  # 3
        try:
            return await call()
        except ProtocolError as error:
            self._metrics.protocol_error(error.code)
            return protocol_error_reply(error)
        except Exception:
            logger.exception("http route failed", extra={"path": request.path})
            return error_reply(500, "server_error", "the server failed to answer; its log says why")

    def _find(self, request: HttpRequest) -> Callable[[], Awaitable[HttpReply]] | None:
        for pattern, route in self._table:
            match = pattern.fullmatch(request.path)
            if match is not None:
                return lambda: route(request, match)
        if self._page.get(request.path) is not None:
            return lambda: self._page_file(request)
        return None

    async def _healthz(self, _request: HttpRequest, _match: re.Match[str]) -> HttpReply:
        return json_reply({"status": "ok"})

    async def _readyz(self, _request: HttpRequest, _match: re.Match[str]) -> HttpReply:
        reasons = self._readiness.reasons()
        status = http.HTTPStatus.SERVICE_UNAVAILABLE if reasons else http.HTTPStatus.OK
        return json_reply({"ready": not reasons, "reasons": reasons}, status)

    async def _metrics_text(self, request: HttpRequest, _match: re.Match[str]) -> HttpReply:
        _signed_in(request).require(Right.METRICS)
        return HttpReply(200, self._metrics.render(), CONTENT_TYPE, {"Cache-Control": "no-store"})

    async def _models(self, request: HttpRequest, _match: re.Match[str]) -> HttpReply:
        return json_reply(await self._queries.models(_signed_in(request)))

    async def _limits(self, request: HttpRequest, _match: re.Match[str]) -> HttpReply:
        return json_reply(await self._queries.limits(_signed_in(request)))

    async def _response(self, request: HttpRequest, match: re.Match[str]) -> HttpReply:
        return json_reply(await self._queries.response(_signed_in(request), match[1]))

    async def _conversations(self, request: HttpRequest, _match: re.Match[str]) -> HttpReply:
        user = _signed_in(request)
        return json_reply(await self._queries.conversations(user, *_list_parameters(request.query)))

    async def _conversation(self, request: HttpRequest, match: re.Match[str]) -> HttpReply:
        return json_reply(await self._queries.conversation(_signed_in(request), match[1]))

    async def _items(self, request: HttpRequest, match: re.Match[str]) -> HttpReply:
        user = _signed_in(request)
        return json_reply(await self._queries.items(user, match[1], *_list_parameters(request.query)))

    async def _page_file(self, request: HttpRequest) -> HttpReply:
        file = self._page.get(request.path)
        if file is None:  # deleted between the look-up and now
            return error_reply(404, "not_found", f"there is nothing at {excerpt(request.path)}")
        headers = {
            "ETag": f"W/{file.etag}",  # weak: the same for the compressed body
            "Cache-Control": "no-cache",
            "Vary": "Accept-Encoding",
            **security_headers(request.headers.get("host")),
        }
        known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        if file.etag in known or "*" in known:
            return HttpReply(http.HTTPStatus.NOT_MODIFIED, headers=headers)
        if file.gzipped is not None and _takes_gzip(request.headers.get("accept-encoding", "")):
            return HttpReply(200, file.gzipped, file.content_type, {**headers, "Content-Encoding": "gzip"})
        return HttpReply(200, file.body, file.content_type, headers)


def sign_in_first() -> ProtocolError:
    """Return the error for who has not signed in where one must."""
    return unauthorized("sign in: send your key or token as Authorization: Bearer …")


def _takes_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding header names gzip, and not to forbid it (RFC 9110, section 12.5.3)."""
    named = re.search(r"(?:^|,)\s*gzip\s*(?:;\s*q\s*=\s*([0-9.]+)\s*)?(?:,|$)", accepted)
    return named is not None and bool((named[1] or "1").strip("0."))


def _signed_in(request: HttpRequest) -> User:
    if request.user is None:
        raise sign_in_first()
    return request.user


def _list_parameters(query: str) -> tuple[str | None, int]:
    """Return (after, limit) of a query string; unknown parameters are ignored, as in commands."""
    values = parse_qs(query, keep_blank_values=True, errors="replace")
    after = values.get("after", [""])[-1] or None
    if after is not None and len(after) > 200:  # noqa: PLR2004 as _ID
        raise ProtocolError("invalid_request", "after must be an id from this list", param="after")
    given = values.get("limit", [str(DEFAULT_PAGE)])[-1]
    if not re.fullmatch(r"[0-9]{1,4}", given) or not 1 <= int(given) <= MAX_PAGE:
        text = f"limit must be a whole number from 1 to {MAX_PAGE}, not {excerpt(given, 20)!r}"
        raise ProtocolError("invalid_request", text, param="limit")
    return after, int(given)
