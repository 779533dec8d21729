"""The echo engine's script: which answer it is, in which chunks, and what is wrong with a file."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from protocol.events import Written
from protocol.items import Message
from protocol.options import PLAIN, FunctionTool, Options, TextFormat
from server.engine.base import Chunk, EngineStartError, FinishReason, GenerationRequest, RefusedError, Sampling
from server.engine.echo import EchoEngine
from server.engine.script import load_script

SCRIPT = """
[[answers]]
role = "tool"
chunks = ["It said: ", "{{input}}"]

[[answers]]
match = "(?i)weather"
chunks = ["I have ", "{{tools}}", "."]
"""


def file(folder: Path, text: str) -> Path:
    (folder / "script.toml").write_text(text, encoding="utf-8")
    return folder / "script.toml"


async def ask(engine: EchoEngine, *messages: Message, said: str = "", tools: str = "") -> list[Chunk]:
    options = Options(tools=tuple(map(FunctionTool, tools)))
    prompt = await engine.extend(await engine.render(messages, options), Written(said))
    request = GenerationRequest("r", prompt, Sampling(99), options=options)
    async with aclosing(engine.generate(request)) as chunks:
        return [chunk async for chunk in chunks]


@pytest.fixture
async def engine(tmp_path: Path) -> EchoEngine:
    engine = EchoEngine("e", rate=0, ttft_ms=0, script=file(tmp_path, SCRIPT))
    await engine.start(lambda *_: None)
    return engine


async def test_chunk_by_chunk(engine: EchoEngine):
    """As the script has them, with what was said last and the tools put in."""
    chunks = await ask(engine, Message("user", "The weather?"), tools="fg")
    assert [chunk.text for chunk in chunks] == ["I have ", "f, g", "."]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, FinishReason.STOP]
    chunks = await ask(engine, Message("user", "The weather?"), Message("tool", "rain", call_id="c"))
    assert [chunk.text for chunk in chunks] == ["It said: ", "rain"]


async def test_what_no_answer_fits_is_echoed(engine: EchoEngine):
    chunks = await ask(engine, Message("user", "hello there"))
    assert "".join(chunk.text for chunk in chunks) == "hello there"


@pytest.mark.parametrize("said", ["", "I", "I have ", "I have f"])
async def test_it_goes_on_behind_what_was_said(engine: EchoEngine, said: str):
    """As a model does that is given the beginning of its answer."""
    chunks = await ask(engine, Message("user", "weather"), said=said, tools="f")
    assert said + "".join(chunk.text for chunk in chunks) == "I have f."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must have"),
        ("answers = []", "must have"),
        ("[[answer]]\nchunks = []", "must have"),
        ("[[answers]]", "answer 1 .* chunks must be a list"),
        ('[[answers]]\nchunks = ["a"]\n[[answers]]\nchunks = "a"', "answer 2 .* chunks"),
        ('[[answers]]\nchunks = []\nrole = "robot"', "role must be one of"),
        ('[[answers]]\nchunks = []\nmatch = "("', "regular expression"),
        ("[[answers]]\nchunks = []\nmatch = 5", "regular expression"),
        ('[[answers]]\nchunks = []\nmatches = "a"', "unknown matches"),
        ("[[answers", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, words: str):
    with pytest.raises(EngineStartError, match=words) as caught:
        load_script(file(tmp_path, text))
    assert str(tmp_path) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path):
    """The server says so when it starts."""
    engine = EchoEngine("e", rate=0, ttft_ms=0, script=tmp_path / "none.toml")
    with pytest.raises(EngineStartError, match=r"none\.toml cannot be read: No such file"):
        asyncio.run(engine.start(lambda *_: None))


async def test_without_a_script_nothing_keeps_to_a_form():
    """What would be ignored is refused by name; tools that may be called need not be."""
    engine = EchoEngine("e", rate=0, ttft_ms=0)
    await engine.check(PLAIN)
    tools = (FunctionTool("f"),)
    await engine.check(Options(tools=tools))
    for options, param in (
        (Options(tools=tools, tool_choice="required"), "tool_choice"),
        (Options(format=TextFormat("json_object")), "text.format.type"),
    ):
        with pytest.raises(RefusedError) as caught:
            await engine.check(options)
        assert caught.value.param == param
