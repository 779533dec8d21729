"""What a model thought, through the page, as vLLM's own parser tells it from the answer."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.e2e.browser import ChatPage
from tests.support.server import ServerProcess

Open = Callable[[str], ChatPage]

SCRIPT = """
[[answers]]
chunks = ["<think>Let me", " see. It is", " a test.</th", "ink>\\n\\nIt ", "is a test."]
"""


@pytest.fixture
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("thinking")
    script = folder / "script.toml"
    script.write_text(SCRIPT)
    model = '[models.thinker]\nsource = "echo"\nreasoning_parser = "qwen3"\n'
    server = ServerProcess(folder / "data", config=f'{model}[echo]\nrate = 2\nscript = "{script}"\n').start()
    yield server
    assert server.stop() == 0, server.tail()


def test_thoughts_are_folded_away_also_after_a_reload(thinking: ServerProcess, open_page: Open):
    chat = open_page(thinking.url)
    chat.send("What is it?")
    expect(chat.page.get_by_text("Thinking…", exact=True)).to_be_visible()
    chat.expect_status("completed")
    for _ in range(2):
        expect(chat.answer).to_have_text("It is a test.")
        expect(chat.answers.last.locator(".thoughts")).to_be_hidden()
        chat.page.get_by_text("Thoughts", exact=True).click()
        expect(chat.answers.last.locator(".thoughts")).to_have_text("Let me see. It is a test.")
        chat.page.reload()
        chat.expect_status("completed")
