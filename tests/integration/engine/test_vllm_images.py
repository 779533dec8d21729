"""Images on real vLLM: what the model sees depends on them, and nothing else can pass for one."""

from __future__ import annotations

import base64
import io
import itertools
from contextlib import aclosing
from typing import Any

import pytest
from PIL import Image as Picture

from protocol.events import Written
from protocol.items import Message, parse_input
from protocol.options import Options
from server.engine.base import Chunk, GenerationRequest, Prompt, PromptError, Sampling
from server.engine.vllm import VllmEngine
from tests.support.random_model import IMAGE_TOKENS

pytestmark = pytest.mark.asyncio(loop_scope="session")

GREEDY = Sampling(4, temperature=0.0, ignore_eos=True)
_ids = itertools.count()


def picture(color: str, kind: str = "PNG") -> dict[str, Any]:
    """Return the part of a message that is an image of one color."""
    file = io.BytesIO()
    Picture.new("RGB", (80, 40), color).save(file, kind)
    return image(file.getvalue(), kind.lower())


def image(data: bytes, kind: str = "png") -> dict[str, Any]:
    return {"type": "input_image", "image_url": f"data:image/{kind};base64,{base64.b64encode(data).decode()}"}


def text(words: str) -> dict[str, Any]:
    return {"type": "input_text", "text": words}


def said(*parts: dict[str, Any]) -> tuple[Message, ...]:
    return parse_input([{"role": "user", "content": list(parts)}])


async def answer(engine: VllmEngine, prompt: Prompt) -> list[Chunk]:
    request = GenerationRequest(f"image-{next(_ids)}", prompt, GREEDY, options=Options(top_logprobs=0))
    async with aclosing(engine.generate(request)) as chunks:
        return [chunk async for chunk in chunks]


def likelihoods(chunks: list[Chunk]) -> list[float]:
    return [one["logprob"] for chunk in chunks for one in chunk.logprobs]


async def test_what_the_model_sees_is_the_image(vllm_seeing: VllmEngine) -> None:
    """The same one gives the same answer, another one another, in each kind of file; the prompt has its tokens."""
    assert vllm_seeing.takes_images
    plain = await vllm_seeing.render(said(text("What is it?")))
    prompts = [
        await vllm_seeing.render(said(picture(color, kind), text("What is it?")))
        for color, kind in (("red", "PNG"), ("red", "GIF"), ("blue", "PNG"), ("red", "WEBP"), ("red", "JPEG"))
    ]
    assert {prompt.token_count for prompt in prompts} == {plain.token_count + IMAGE_TOKENS}
    red, gif, blue, *_ = [likelihoods(await answer(vllm_seeing, prompt)) for prompt in prompts]
    assert red == pytest.approx(gif, abs=1e-3)
    assert red != pytest.approx(blue, abs=1e-3)
    assert vllm_seeing.unfinished == 0


async def test_several_and_between_words(vllm_seeing: VllmEngine) -> None:
    """Where they stand in the text counts, and so does their order."""
    parts = [picture("red"), text("and"), picture("blue")]
    forth, back = [await vllm_seeing.render(said(*order)) for order in (parts, parts[::-1])]
    assert forth.token_count == back.token_count
    assert likelihoods(await answer(vllm_seeing, forth)) != likelihoods(await answer(vllm_seeing, back))
    with pytest.raises(PromptError, match="2"):
        await vllm_seeing.render(said(*parts, picture("green")))


async def test_text_that_spells_an_image_is_text(vllm_seeing: VllmEngine) -> None:
    """`<image>` in a message is seven characters, beside an image and without one."""
    alone = await vllm_seeing.render(said(text("<image>")))
    beside = await vllm_seeing.render(said(text("<image>"), picture("red")))
    assert beside.token_count == alone.token_count + IMAGE_TOKENS
    assert beside.media is not None
    assert alone.media is None
    assert await answer(vllm_seeing, alone)


async def test_a_damaged_image_is_refused(vllm_seeing: VllmEngine) -> None:
    """One whose size can be read and whose rest cannot; the next turn is answered."""
    whole = base64.b64decode(picture("red")["image_url"].partition(",")[2])
    with pytest.raises(PromptError, match="damaged"):
        await vllm_seeing.render(said(image(whole[:60] + bytes(40))))
    assert await answer(vllm_seeing, await vllm_seeing.render(said(text("x"))))


async def test_an_answer_about_an_image_goes_on(vllm_seeing: VllmEngine) -> None:
    """What a takeover does: prompt, image and beginning give the rest."""
    prompt = await vllm_seeing.render(said(picture("red"), text("What is it?")))
    whole = await answer(vllm_seeing, prompt)
    begun = await vllm_seeing.extend(prompt, Written(whole[0].text, whole[0].token_ids))
    assert begun.media is not None
    assert begun.token_count > prompt.token_count
    assert await answer(vllm_seeing, begun)


async def test_the_default_model_takes_none(vllm_engine: VllmEngine) -> None:
    assert not vllm_engine.takes_images
