"""One HTTP service with JSON bodies: what remote engines need of HTTP, with faults in words a person can act on."""

from __future__ import annotations

import asyncio
import email.utils
import os
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

import aiohttp
import orjson

from protocol.errors import excerpt
from server.engine.base import EngineError, EngineStartError
from server.engine.completion_stream import MAX_SHOWN_CHARS, error_text

CONNECT_TIMEOUT_S: Final = 10.0
ANSWER_TIMEOUT_S: Final = 30.0  # a short question: the list of models, the length of a prompt
MAX_BODY_BYTES: Final = 64 * 1024 * 1024  # of an answer that is read whole; 1,000 long embeddings are 20 MB

# Tried again before the first token: nothing was said yet. More than these would hide a fault for long.
RETRIES: Final = 3
RETRY_FIRST_S: Final = 0.25  # doubled each time
RETRY_MAX_S: Final = 5.0  # a server that asks for a longer pause is busy: that is for the client to hear
MAX_PAUSE_S: Final = 86_400.0  # what a server asks for beyond a day is no time to tell anybody
_RETRIED_STATUSES: Final = frozenset({429, 502, 503, 504})

_NO_KEY: Final = "[key]"  # in its place, where a server says it

_HINTS: Final = {
    401: "the key is missing or wrong: see api_key_env",
    403: "the key may not do this: see api_key_env",
    404: "there is no such path or model: does the url end as the server wants it (mostly /v1)?",
}


class EndpointDownError(EngineError):
    """Nobody answers there, or what answers has broken the connection off."""


class EndpointSilentError(EndpointDownError):
    """It took the request, and nothing came back in time: what else it does may go on."""


class EndpointRefusedError(EngineError):
    """It answered with an HTTP error. status: its code. says: the server's own words. pause_s: to wait, as it says."""

    def __init__(self, where: str, status: int, says: str, pause_s: float = 0.0) -> None:
        hint = f"try again in {pause_s:.0f} s" if pause_s >= 1 else _HINTS.get(status)
        super().__init__(f"{where} answered {status}: {says or 'no text'}" + (f" ({hint})" if hint else ""))
        self.status = status
        self.says = says
        self.pause_s = pause_s


class Endpoint:
    """A server by its base URL.

    key_variable: the environment variable that holds the bearer token; None sends none.
    silence_timeout_s: a stream that brings no byte this long counts as broken.
    """

    def __init__(self, url: str, key_variable: str | None, silence_timeout_s: float) -> None:
        self.url = url.rstrip("/")
        self._key_variable = key_variable
        self._silence_timeout_s = silence_timeout_s
        self._secret = ""
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Make ready to ask; raises EngineStartError where the key is not there."""
        self._secret = self._key() if self._key_variable else ""
        headers = {"Authorization": f"Bearer {self._secret}"} if self._secret else {}
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0),  # admission decides how many answers are made at once
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S, sock_read=self._silence_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close every connection; harmless when that was done."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def get(self, path: str, *, retries: int = 0) -> Any:
        """Return the decoded answer of a GET. path: below the base URL, or a whole URL."""
        return await self._ask("GET", path, None, retries)

    async def post(self, path: str, body: Mapping[str, Any], *, retries: int = 0) -> Any:
        """Return the decoded answer of a POST.

        Raises EndpointDownError, EndpointRefusedError, EngineError where the answer is no JSON.
        """
        return await self._ask("POST", path, body, retries)

    async def stream(self, path: str, body: Mapping[str, Any]) -> aiohttp.ClientResponse:
        """Return the answer to a POST once it has begun well; closing it tells the server to stop. Raises as `post`."""
        return await self._begin("POST", path, body, RETRIES)

    async def pieces(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        """Yield what has come since the last time, at least one byte of it. Raises EndpointDownError."""
        try:
            while True:
                # aiohttp's own limit ends with the connection, and where the chunks are malformed it tells no reader.
                async with asyncio.timeout(self._silence_timeout_s):
                    data = await response.content.readany()
                if not data:
                    return
                yield data
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EndpointDownError(f"the stream ended early: {_words(error)}") from None

    def without_key(self, text: str) -> str:
        """Return what a server says of itself without our key: some repeat it in their errors, which users see."""
        return text.replace(self._secret, _NO_KEY) if self._secret else text

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, retries: int) -> Any:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                response = await self._begin(method, path, body, retries)
                async with response:
                    data = await _read(response)
        except TimeoutError:
            raise EndpointSilentError(f"{self._where(path)} did not answer within {ANSWER_TIMEOUT_S:g} s") from None
        except aiohttp.ClientError as error:
            raise EndpointDownError(f"{self._where(path)} ended its answer early: {_words(error)}") from None
        try:
            return orjson.loads(data)
        except ValueError:
            kind = response.content_type
            raise EngineError(f"{self._where(path)} answered no JSON, but {kind}: is the url right?") from None

    async def _begin(
        self, method: str, path: str, body: Mapping[str, Any] | None, retries: int
    ) -> aiohttp.ClientResponse:
        """Send the request, again where that may help; return the answer when its head is there and says 200."""
        for attempt in range(retries + 1):
            pause = RETRY_FIRST_S * 2**attempt
            try:
                response = await self._send(method, path, body)
            except EndpointSilentError:
                raise  # that was a long time already
            except EndpointDownError:
                if attempt == retries:
                    raise
            else:
                if response.status == 200:  # noqa: PLR2004 HTTP's own number
                    return response
                pause = max(pause, _asked_pause(response.headers.get("Retry-After")))
                error = await self._refusal(response, path)
                if attempt == retries or pause > RETRY_MAX_S or response.status not in _RETRIED_STATUSES:
                    raise error
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> aiohttp.ClientResponse:
        if self._session is None:
            raise EndpointDownError(f"{self.url} is not connected")
        data = None if body is None else orjson.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            # No redirects: the key must not go to wherever somebody points.
            return await self._session.request(
                method, self._whole(path), data=data, headers=headers, allow_redirects=False
            )
        except aiohttp.SocketTimeoutError:
            text = f"{self._where(path)} has not begun to answer within {self._silence_timeout_s:g} s"
            raise EndpointSilentError(text) from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EndpointDownError(f"{self._where(path)} does not answer: {_words(error)}") from None

    async def _refusal(self, response: aiohttp.ClientResponse, path: str) -> EndpointRefusedError:
        says = ""
        async with response:
            try:
                data = await response.content.read(16 * MAX_SHOWN_CHARS)
                says = error_text(orjson.loads(data) if b"{" in data[:1] else data.decode(), self.without_key)
            except (aiohttp.ClientError, TimeoutError, ValueError):
                pass  # the status says enough
        if location := response.headers.get("Location"):
            says = f"go to {excerpt(self.without_key(location), MAX_SHOWN_CHARS)}; set that url"
        pause_s = _asked_pause(response.headers.get("Retry-After"))
        return EndpointRefusedError(self._where(path), response.status, says, pause_s)

    def _key(self) -> str:
        assert self._key_variable is not None
        key = os.environ.get(self._key_variable, "").strip()
        if not key:
            raise EngineStartError(f"{self.url} wants a key: the environment variable {self._key_variable} is not set")
        if not key.isascii() or not key.isprintable():
            raise EngineStartError(f"the key in the environment variable {self._key_variable} is not plain ASCII")
        return key

    def _whole(self, path: str) -> str:
        return path if "://" in path else f"{self.url}/{path}"

    def _where(self, path: str) -> str:
        return excerpt(self._whole(path))


async def _read(response: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > MAX_BODY_BYTES:
            raise EngineError(f"the server's answer has more than {MAX_BODY_BYTES} bytes")
    return bytes(data)


def _asked_pause(header: str | None) -> float:
    """Return the seconds that a Retry-After header asks for (RFC 9110, section 10.2.3), 0 where it makes no sense."""
    if header is None:
        return 0.0
    try:
        if header.strip().isdecimal():
            pause_s = float(header)
        else:
            pause_s = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(0.0, pause_s), MAX_PAUSE_S)


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "time is up"
    return excerpt(" ".join(str(error).split()) or type(error).__name__, MAX_SHOWN_CHARS)
