"""Images of messages, made ready for vLLM. Pillow comes with vLLM, and is imported with the first image."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any, Final

from protocol.errors import excerpt
from protocol.images import MAX_IMAGE_PIXELS
from protocol.items import Message
from server.engine.base import Prompt, PromptError

# Of all images that one prompt has, the conversation's older ones included: unpacked, each takes three bytes.
MAX_PROMPT_PIXELS: Final = 2 * MAX_IMAGE_PIXELS


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
    """Return the images, as Pillow's; of an animation the first frame.

    Raises PromptError for a damaged one, and before any is unpacked for too many pixels: some kilobytes hold millions.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes, which are looked at here
        try:
            opened = [_opened(image.data) for message in messages for image in message.images]
            sizes = [picture.width * picture.height for picture in opened]
            if max(sizes, default=0) <= MAX_IMAGE_PIXELS and sum(sizes) <= MAX_PROMPT_PIXELS:
                return [picture.convert("RGB") for picture in opened]
        except Exception as error:  # of the decoders, as above
            raise PromptError("an image is damaged: it cannot be unpacked") from error
    raise PromptError(
        f"its {len(sizes)} images have {sum(sizes)} pixels, the largest {max(sizes)}; at most {MAX_PROMPT_PIXELS} "
        f"together are taken, {MAX_IMAGE_PIXELS} in one: make them smaller"
    )


def _opened(data: bytes) -> Any:
    from PIL import Image  # noqa: PLC0415 - see the module's text

    return Image.open(BytesIO(data), formats=("PNG", "JPEG", "WEBP", "GIF"))
