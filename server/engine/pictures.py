"""Images of messages, made ready for vLLM. Pillow comes with vLLM, and is imported with the first image."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any

from protocol.errors import excerpt
from protocol.images import MAX_IMAGE_PIXELS
from protocol.items import Message
from server.engine.base import Prompt, PromptError


async def with_images(prompt: Prompt, renderer: Any) -> Prompt:
    """Return a prompt with its messages' images in it, each as many tokens long as the model sees it.

    renderer: vLLM's. Raises PromptError where it cannot make anything of them.
    """
    images = await asyncio.to_thread(unpacked, prompt.messages)
    given = {"prompt_token_ids": list(prompt.token_ids), "multi_modal_data": {"image": images}}
    try:
        # Its cache is for what is sent to EngineCore for certain; a prompt may yet be refused.
        media = await renderer.process_for_engine_async(given, time.time(), skip_mm_cache=True)
    except Exception as error:  # of the model's own processor, which raises whatever it likes
        raise PromptError(excerpt(" ".join(str(error).split()))) from error
    token_ids = list(media["prompt_token_ids"])
    return replace(prompt, token_ids=token_ids, token_count=len(token_ids), media=media)


def unpacked(messages: Sequence[Message]) -> list[Any]:
    """Return the images, as Pillow's; of an animation the first frame. Raises PromptError for a damaged one."""
    return [_unpacked(image.data) for message in messages for image in message.images]


def _unpacked(data: bytes) -> Any:
    from PIL import Image  # noqa: PLC0415 - see the module's text

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes, which are looked at here
            picture = Image.open(BytesIO(data), formats=("PNG", "JPEG", "WEBP", "GIF"))
            if picture.width * picture.height <= MAX_IMAGE_PIXELS:
                return picture.convert("RGB")
    except Exception as error:  # of the decoders, as above
        raise PromptError("an image is damaged: it cannot be unpacked") from error
    raise PromptError(f"an image has {picture.width} by {picture.height} pixels")
