"""Images from strangers: what is none, or too much, is refused before anything unpacks it."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import images
from protocol.errors import ProtocolError
from protocol.images import MAX_IMAGE_BYTES, MAX_IMAGES, Image
from protocol.items import Item, parse_input

GIF = b"GIF89a" + struct.pack("<HH", 30, 20) + bytes(9)
PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 30, 20) + bytes(9)
JPEG = b"\xff\xd8\xff\xe0" + struct.pack(">H", 4) + b"xx\xff\xc2" + struct.pack(">HBHH", 11, 8, 20, 30) + bytes(9)
WEBP = {
    "lossy": b"RIFF\x00\x00\x00\x00WEBPVP8 " + bytes(10) + struct.pack("<HH", 30, 20) + bytes(9),
    "lossless": b"RIFF\x00\x00\x00\x00WEBPVP8L" + bytes(4) + b"\x2f" + struct.pack("<I", 29 | 19 << 14) + bytes(9),
    "extended": b"RIFF\x00\x00\x00\x00WEBPVP8X" + bytes(8) + b"\x1d\x00\x00\x13\x00\x00" + bytes(9),
}
FILES = {"gif": GIF, "png": PNG, "jpeg": JPEG, **WEBP}


def url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def content(*parts: Any, role: str = "user") -> Any:
    return [{"role": role, "content": list(parts)}]


def image(url: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url}


def text(words: str) -> dict[str, Any]:
    return {"type": "input_text", "text": words}


def fault(value: Any) -> tuple[str | None, str]:
    with pytest.raises(ProtocolError) as caught:
        parse_input(value)
    assert len(caught.value.message) < 300
    return caught.value.param, caught.value.message


@pytest.mark.parametrize("name", FILES)
def test_each_kind_is_known_by_its_content(name, monkeypatch):
    """Whatever the URL says; its size is read from its head: one pixel less allowed, and it is refused."""
    given_url = url(FILES[name])
    (message,) = parse_input(content(image(given_url)))
    assert message.images == (Image(given_url, 0),)
    assert message.images[0].data == FILES[name]
    monkeypatch.setattr(images, "MAX_IMAGE_PIXELS", 599)
    param, words = fault(content(image(given_url)))
    assert param == "input[0].content[0].image_url"
    assert "30 by 20" in words


@pytest.mark.parametrize(
    "bad",
    [
        None,
        5,
        "",
        "https://example.com/x.png",
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "data:text/html;base64,R0lG",
        "data:image/svg+xml;base64,R0lG",
        "data:image/png;base64,",
        "data:image/png;base64,not base64!",
        "data:image/png,R0lG",
        url(b"hello"),
        url(b"MZ" + bytes(99)),
        url(PNG[:20]),
        url(JPEG[:8]),
        url(GIF[:6] + bytes(4)),
        url(WEBP["lossy"][:14]),
    ],
)
def test_what_is_no_image(bad):
    """Named with its place."""
    assert fault(content(text("x"), image(bad)))[0] == "input[0].content[1].image_url"


def test_one_of_50_megabytes():
    """Refused by its size, before it is decoded."""
    param, words = fault(content(image(url(PNG + bytes(50_000_000)))))
    assert param == "input[0].content[0].image_url"
    assert str(MAX_IMAGE_BYTES) in words


def test_a_bomb():
    """A small file of very many pixels."""
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 60_000, 60_000)
    assert "60000 by 60000" in fault(content(image(url(head))))[1]


def test_too_many():
    """Over all messages of one input."""
    many = [*content(*[image(url(GIF))] * MAX_IMAGES), *content(image(url(GIF)))]
    assert fault(many)[0] == "input"
    assert len(parse_input(many[:1])[0].images) == MAX_IMAGES


@pytest.mark.parametrize("role", ["system", "assistant", "developer"])
def test_only_users_show_any(role):
    assert fault(content(image(url(GIF)), role=role))[0] == "input[0].content[0].type"


def test_they_keep_their_places():
    """Kept as an item, shown to clients and given to models as they were sent."""
    parts = [text("This "), image(url(GIF)), image(url(PNG)), text("and that"), image(url(GIF))]
    (message,) = parse_input(content(*parts))
    assert message.content == "This and that"
    item = Item.of(message, "1", "resp_1")
    shown = item.as_wire()["content"]
    assert [part.get("text", part.get("image_url")) for part in shown] == [
        "This ",
        url(GIF),
        url(PNG),
        "and that",
        url(GIF),
    ]
    assert item.as_message() == message


@given(st.sampled_from(sorted(FILES)), st.integers(0, 60), st.binary(max_size=40))
def test_any_damage_is_taken_or_refused_by_name(name, cut, rest):
    """No other exception."""
    try:
        parse_input(content(image(url(FILES[name][:cut] + rest))))
    except ProtocolError as error:
        assert error.param == "input[0].content[0].image_url"  # noqa: PT017 either way is right
