"""One whole conversation with a real model, through the page."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.e2e.browser import ChatPage
from tests.support.server import ServerProcess

Open = Callable[[str], ChatPage]
READY_S = 150  # vLLM's imports alone take half a minute


@pytest.fixture(scope="module")
def vllm_page_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ("--model", "smollm2-135m-instruct")
    server = ServerProcess(tmp_path_factory.mktemp("data"), *options, engine="vllm").launch()
    server.url = server._ready.get(timeout=READY_S)
    yield server
    assert server.stop() == 0, server.tail()
    assert server.faults() == []


@pytest.mark.timeout(300)
def test_a_conversation_with_a_real_model(vllm_page_server: ServerProcess, open_page: Open):
    """Asked, followed up, stopped, gone on with, answered again, and there after a reload."""
    chat = open_page(vllm_page_server.url)
    expect(chat.page.get_by_role("button", name="Model: smollm2-135m-instruct")).to_be_visible()
    assert "Paris" in chat.ask("What is the capital of France?")
    chat.ask("And of Italy?")
    chat.send("Tell me a long story about an old lighthouse keeper and the sea.")
    expect(chat.answer).to_have_text(re.compile(r"(\S+\s+){8}"), timeout=60_000)
    chat.input.press("Escape")
    chat.expect_status("stopped")
    stopped = chat.answer.inner_text()
    chat.page.reload()
    chat.expect_status("stopped")
    assert chat.answer.inner_text() == stopped
    assert chat.ask("What is the capital of France?")
    first = chat.answer.inner_text()
    chat.page.get_by_role("button", name="Answer again").last.click()
    expect(chat.page.get_by_label("Version 2 of 2")).to_be_visible(timeout=30_000)
    chat.expect_status("completed")
    assert chat.answer.inner_text() == first  # the default model answers greedily
    chat.page.get_by_role("button", name="Speed").last.click()
    expect(chat.answers.last.locator(".figures")).to_contain_text("tokens/s")
    expect(chat.questions).to_have_count(4)
