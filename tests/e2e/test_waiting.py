"""What the page tells of waiting, as a real server makes people wait: one place, a slow model, a small window."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.browser import ChatPage
from tests.support.server import ServerProcess

Open = Callable[[str], ChatPage]

SETTINGS = """
default_model = "small"
[echo]
rate = 100
load_ms = 1000
max_concurrency = 1
context_length = 512
[models.small]
source = "x"
[models.big]
source = "x"
min_replicas = 0
"""


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("waiting"), config=SETTINGS).start()
    yield server
    assert server.stop() == 0, server.tail()


@pytest.fixture(scope="module")
def crowded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One answer at a time, of five words a second: who waits does so until the one before is stopped."""
    options = ("--echo-rate", "5")
    server = ServerProcess(tmp_path_factory.mktemp("crowded"), *options, config="[echo]\nmax_concurrency = 1").start()
    yield server
    assert server.stop() == 0, server.tail()


def in_line(server: ServerProcess, open_page: Open) -> tuple[ChatPage, ChatPage]:
    """Return a tab that is being answered, and one that waits for it."""
    one, two = open_page(server.url), open_page(server.url)
    one.send("word " * 500)
    one.wait_for_text("word word")
    two.send("me next")
    expect(two.answers.last).to_contain_text("Waiting in line, number 1")
    return one, two


def stop(chat: ChatPage) -> None:
    chat.input.press("Escape")
    chat.expect_status("stopped")


def test_the_place_in_line(crowded_server: ServerProcess, open_page: Open):
    one, two = in_line(crowded_server, open_page)
    stop(one)
    two.expect_status("completed")
    expect(two.answers.last).not_to_contain_text("Waiting")


def test_an_answer_that_is_stopped_while_it_waits_can_be_made_later(crowded_server: ServerProcess, open_page: Open):
    """Also after a reload, although nothing of it is kept."""
    one, two = in_line(crowded_server, open_page)
    stop(two)
    two.page.reload()
    two.expect_status("stopped")
    expect(two.answer).to_be_empty()
    stop(one)
    two.page.get_by_role("button", name="Answer again").click()
    two.expect_status("completed")
    expect(two.answer).to_have_text("me next")


def test_a_model_that_is_loaded_when_it_is_wanted(slow_server: ServerProcess, open_page: Open):
    chat = open_page(slow_server.url)
    chat.page.get_by_role("button", name="Model: Default model").click()
    entries = chat.page.get_by_role("menuitemradio")
    expect(entries).to_have_text(["Default model", "smallready", "bigloaded when needed"])
    entries.last.click()
    chat.send("hello")
    expect(chat.answers.last).to_contain_text("Loading the model")
    chat.expect_status("completed")
    chat.page.get_by_role("button", name="Model: big").click()
    expect(entries.last).to_have_text("bigready")


def test_a_long_file_is_summarised_part_by_part(slow_server: ServerProcess, open_page: Open, tmp_path: Path):
    chat = open_page(slow_server.url)
    file = tmp_path / "book.txt"
    file.write_text("\n\n".join(f"## Chapter {number}\n\n{'word ' * 150}" for number in range(3)))
    chat.page.locator("#file").set_input_files(file)
    chat.page.get_by_role("button", name="Send").click()
    expect(chat.answers.last).to_contain_text(re.compile(r"[1-9] of \d+ parts are summarised"))
    expect(chat.page.get_by_role("progressbar")).to_have_count(1)
    expect(chat.page.get_by_role("progressbar")).to_have_count(0, timeout=30_000)
    expect(chat.answer.get_by_role("heading").first).to_have_text("Part 1 of 3")
    expect(chat.answer).to_contain_text("Summary")  # no heading: the engine echoes the file's fence, and cuts it off
