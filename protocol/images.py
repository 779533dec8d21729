"""Images in messages: as data URLs only, so that no request ever goes to an address that a stranger names."""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec

from protocol.errors import ProtocolError, excerpt

MAX_IMAGES: Final = 16  # in one `input`
MAX_IMAGE_BYTES: Final = 20 * 1024 * 1024  # decoded; OpenAI takes 50 MB for a whole request
# Some kilobytes may unfold to gigabytes. A phone's photo has 12 to 50 million.
MAX_IMAGE_PIXELS: Final = 50_000_000

_URL: Final = re.compile(r"data:image/(png|jpeg|jpg|webp|gif);base64,", re.IGNORECASE)
_FRAME_HEADERS: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # JPEG's SOF markers (ITU-T T.81, B.1.1.3)


class Image(msgspec.Struct, frozen=True, gc=False):
    """An image of a message. url: as it was sent. at: characters of the message's text that stand before it."""

    url: str
    at: int = 0

    @property
    def data(self) -> bytes:
        """The file."""
        return base64.b64decode(self.url.partition(",")[2])


def parse_image(part: dict[str, Any], param: str, at: int) -> Image:
    """Return the image of an `input_image` part. Raises ProtocolError naming the field at fault."""
    url, field = part.get("image_url"), f"{param}.image_url"
    if not isinstance(url, str):
        hint = "; files are not kept here, so file_id is not taken" if part.get("file_id") else ""
        raise _invalid(f"{field} must be a string: a data URL{hint}", field)
    if not _URL.match(url):
        shown = excerpt(url.partition(",")[0], 64)
        what = "must be data:image/png;base64,… (or jpeg, webp, gif): nothing is fetched from elsewhere"
        raise _invalid(f"{field} {what}; got '{shown}'", field)
    size = (len(url) - url.index(",") - 1) * 3 // 4
    if size > MAX_IMAGE_BYTES:
        raise _invalid(f"{field} has {size} bytes; at most {MAX_IMAGE_BYTES} are taken", field)
    try:
        data = base64.b64decode(url.partition(",")[2], validate=True)
    except (binascii.Error, ValueError):
        raise _invalid(f"{field} is not valid base64", field) from None
    _check_picture(data, field)
    return Image(url, at)


def _check_picture(data: bytes, field: str) -> None:
    """Refuse what is no picture, or too large a one, whatever its URL says that it is."""
    try:
        size = next((read(data) for magic, read in _READERS if data.startswith(magic)), None)
    except (struct.error, IndexError):
        size = None
    if size is None or not all(size):
        raise _invalid(f"{field} is no PNG, JPEG, WebP or GIF image, or a damaged one", field)
    if size[0] * size[1] > MAX_IMAGE_PIXELS:
        pixels = f"{size[0]} by {size[1]} pixels"
        raise _invalid(f"{field} has {pixels}; at most {MAX_IMAGE_PIXELS} in all are taken", field)


def _png(data: bytes) -> tuple[int, ...] | None:
    return struct.unpack_from(">II", data, 16) if data[12:16] == b"IHDR" else None


def _gif(data: bytes) -> tuple[int, ...]:
    return struct.unpack_from("<HH", data, 6)


def _jpeg(data: bytes) -> tuple[int, ...] | None:
    place = 2
    while data[place] == 0xFF:  # noqa: PLR2004 how each segment begins
        marker, length = data[place + 1], struct.unpack_from(">H", data, place + 2)[0]
        if marker in _FRAME_HEADERS:
            height, width = struct.unpack_from(">HH", data, place + 5)
            return width, height
        place += 2 + length
    return None


def _webp(data: bytes) -> tuple[int, ...] | None:
    match data[8:16]:
        case b"WEBPVP8 ":
            width, height = struct.unpack_from("<HH", data, 26)
            return width & 0x3FFF, height & 0x3FFF
        case b"WEBPVP8L":
            bits = struct.unpack_from("<I", data, 21)[0]
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"WEBPVP8X" if len(data) >= 30:  # noqa: PLR2004 the chunk's end
            return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    return None


# How each kind begins, and what reads its width and height.
_READERS: Final[tuple[tuple[bytes, Callable[[bytes], tuple[int, ...] | None]], ...]] = (
    (b"\x89PNG\r\n\x1a\n", _png),
    (b"GIF87a", _gif),
    (b"GIF89a", _gif),
    (b"\xff\xd8", _jpeg),
    (b"RIFF", _webp),
)


def _invalid(message: str, param: str) -> ProtocolError:
    return ProtocolError("invalid_request", message, param=param)
