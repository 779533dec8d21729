"""Images before vLLM sees them: unpacked, unless they would fill the memory."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image as Picture

from protocol.images import Image
from protocol.items import Message
from server.engine.base import PromptError
from server.engine.pictures import unpacked


def packed(width: int, height: int, kind: str = "PNG") -> Image:
    """One of one color, with one bit for each pixel."""
    file = io.BytesIO()
    Picture.new("1", (width, height)).save(file, kind)
    return Image(f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}")


def shown(*images: Image) -> list[Message]:
    return [Message("user", "", images=(image,)) for image in images]


def test_each_is_unpacked_in_its_order():
    assert [(p.mode, p.size) for p in unpacked(shown(packed(3, 2), packed(5, 4, "GIF")))] == [
        ("RGB", (3, 2)),
        ("RGB", (5, 4)),
    ]


def test_small_files_of_very_many_pixels_together():
    """Each is small enough; together, with those that were said before, they are not: told with the numbers."""
    large = packed(6000, 6000)
    assert len(large.url) < 10_000
    with pytest.raises(
        PromptError, match="3 images have 108000000 pixels, the largest 36000000; at most 100000000 together"
    ):
        unpacked(shown(large, large, large))


def test_a_damaged_one():
    whole = packed(300, 200).data
    for data in (whole[:60], whole[:40] + bytes(60), b"GIF89a"):
        with pytest.raises(PromptError, match="damaged"):
            unpacked(shown(Image(f"data:image/png;base64,{base64.b64encode(data).decode()}")))
