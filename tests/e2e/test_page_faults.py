"""The page under faults that the real server shows seldom, played by the stand-in."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.e2e.browser import FORBIDDEN, ChatPage
from tests.e2e.standin import StandIn

Open = Callable[[str], ChatPage]


def kinds(stand_in: StandIn, kind: str) -> list[dict]:
    """The commands of a type that came, without the empty turns that begin conversations."""
    return [
        command for command in stand_in.commands if command["type"] == kind and command.get("generate") is not False
    ]


def quiet(chat: ChatPage) -> None:
    """Forgets the browser's own report of cut sockets, which these tests cause."""
    chat.problems[:] = [problem for problem in chat.problems if "WebSocket" not in problem]


def test_queue_position_and_model_loading_are_told(stand_in: StandIn, open_page: Open):
    chat = open_page(stand_in.url)
    chat.send("!queue please")
    expect(chat.answers.last).to_contain_text("Waiting in line, number 3, about 4 s")
    stand_in.go_on()
    expect(chat.answers.last).to_contain_text("Loading the model 40 %")
    stand_in.go_on()
    chat.expect_status("completed")
    expect(chat.answers.last).not_to_contain_text("Loading")


def test_a_refused_turn_gives_the_text_back(stand_in: StandIn, open_page: Open):
    chat = open_page(stand_in.url)
    chat.send("!refuse this")
    expect(chat.problem).to_have_text("Too many turns. Try again in 2 seconds.")
    expect(chat.input).to_have_value("!refuse this")
    expect(chat.questions).to_have_count(0)
    chat.input.press_sequentially("x")
    expect(chat.problem).to_be_hidden()


def test_a_cut_in_the_middle_of_an_answer_gives_one_complete_copy(stand_in: StandIn, open_page: Open):
    chat = open_page(stand_in.url)
    words = "!cut " + " ".join(f"word{number}" for number in range(60))
    assert chat.ask(words) == words
    assert len(kinds(stand_in, "response.retrieve")) == 1
    quiet(chat)


def test_every_retryable_close_code_is_survived(stand_in: StandIn, open_page: Open):
    chat = open_page(stand_in.url)
    stand_in.word_seconds = 0.03
    words = " ".join(f"word{number}" for number in range(60))
    chat.send(words)
    for number, code in enumerate((1000, 1001, 1011, 1012, 1013, None), start=1):
        chat.wait_for_text(f"word{number * 2}")
        stand_in.cut_all(code)
    chat.expect_status("completed")
    assert chat.answer.text_content() == words
    quiet(chat)


def test_the_banner_tells_of_a_lost_server_and_the_text_is_sent_once_it_is_back(stand_in: StandIn, open_page: Open):
    chat = open_page(stand_in.url)
    chat.ask("hello")
    port = stand_in.port
    stand_in.stop()
    expect(chat.banner).to_contain_text("Reconnecting")
    chat.send("sent while away")
    expect(chat.questions.last).to_have_text("sent while away")
    stand_in.start(port)
    chat.expect_status("completed")
    assert chat.answer.text_content() == "sent while away"
    assert len(kinds(stand_in, "response.create")) == 2
    expect(chat.banner).to_be_hidden()
    quiet(chat)


def test_a_stop_while_the_server_is_away_gives_the_text_back(stand_in: StandIn, open_page: Open):
    chat = open_page(stand_in.url)
    chat.ask("hello")
    stand_in.stop()
    expect(chat.banner).to_be_visible()
    chat.send("never mind")
    chat.input.press("Escape")
    expect(chat.input).to_have_value("never mind")
    expect(chat.questions).to_have_count(1)
    stand_in.start(stand_in.port)
    expect(chat.banner).to_be_hidden(timeout=15_000)
    assert len(kinds(stand_in, "response.create")) == 1
    quiet(chat)


def test_a_reload_before_the_turn_was_accepted_sends_it_once(stand_in: StandIn, open_page: Open):
    """The same id goes out again, also from the reloaded page."""
    chat = open_page(stand_in.url)
    chat.send("!silent as the grave")
    expect(chat.questions).to_have_count(1)
    while not kinds(stand_in, "response.create"):
        chat.page.wait_for_timeout(10)
    chat.page.reload()
    expect(chat.input).to_have_value("!silent as the grave")
    chat.enter()
    expect(chat.answers).to_have_count(1)
    while len(kinds(stand_in, "response.create")) < 2:
        chat.page.wait_for_timeout(10)
    chat.page.get_by_role("button", name="Stop the answer").click()
    first, second = kinds(stand_in, "response.create")
    assert first["id"] == second["id"]
    assert len(stand_in.conversations) == 1


def test_a_final_close_says_why_and_can_be_tried_again(stand_in: StandIn, open_page: Open):
    chat = open_page(stand_in.url)
    chat.send("!final words")
    expect(chat.banner).to_contain_text("This server is closed to you.")
    expect(chat.input).to_have_value("!final words")
    stand_in.closing = False
    chat.page.get_by_role("button", name="Try now").click()
    expect(chat.banner).to_be_hidden()
    chat.enter()
    chat.expect_status("completed")


def test_a_failed_answer_keeps_its_text_and_says_why(stand_in: StandIn, open_page: Open):
    chat = open_page(stand_in.url)
    chat.send("!fail after these words have come")
    chat.expect_status("failed")
    expect(chat.answer).to_have_text("!fail after these")
    expect(chat.answers.last).to_contain_text("The model stopped working.")
    assert chat.ask("next") == "next"
    chat.page.get_by_role("button", name="Answer again").first.click()
    chat.expect_status("completed")
    expect(chat.answer).to_have_text("!fail after these words have come")
    expect(chat.page.get_by_label("Version 2 of 2")).to_be_visible()


def test_five_thousand_words_stay_smooth(stand_in: StandIn, open_page: Open):
    """Going on costs the same at the end of a long answer as at its start. The long tasks are printed, not judged: they
    depend on what else this machine does (a whole re-render per delta would take many seconds).
    """
    stand_in.word_seconds = 0
    chat = open_page(stand_in.url)
    chat.until_markdown()
    lists = "\n".join(f"- item{line} {'word ' * 8}" for line in range(100))
    code = "\n".join(f"value{line} = compute(1, 2, 3, 4)" for line in range(150))
    prose = "\n\n".join(" ".join(f"w{part}x{word}" for word in range(100)) for part in range(24))
    one = "\n".join(" ".join(f"o{line}x{word}" for word in range(10)) for line in range(80))
    words = f"{one}\n\n{lists}\n\n```python\n{code}\n```\n\n{prose}"
    chat.input.fill(words)  # Chromium itself needs a second for that; what is measured begins after it
    chat.page.evaluate(
        "() => { window.tasks = []; new PerformanceObserver((list) => { for (const entry of list.getEntries())"
        " window.tasks.push(entry.duration); }).observe({ entryTypes: ['longtask'] }); }"
    )
    chat.enter()
    chat.expect_status("completed")
    expect(chat.answer.locator("li")).to_have_count(100)
    assert chat.answer.locator("pre code").text_content() == code
    assert chat.answer.inner_text().split()[-2400:] == prose.split()
    tasks = chat.page.evaluate("window.tasks")
    figures = f"{len(tasks)} long tasks, {sum(tasks):.0f} ms in all, the longest {max(tasks, default=0):.0f} ms"
    print(f"while {len(words.split()):,} words streamed: {figures}")


def test_a_file_without_a_word_is_summarised_and_its_parts_are_counted(
    stand_in: StandIn, open_page: Open, tmp_path: Path
):
    chat = open_page(stand_in.url)
    file = tmp_path / "book.txt"
    file.write_text("long ago")
    chat.page.locator("#file").set_input_files(file)
    expect(chat.page.locator("#files")).to_contain_text("book.txt")
    chat.enter()
    expect(chat.answers.last).to_contain_text("1 of 4 parts are summarised")
    expect(chat.page.get_by_role("progressbar")).to_have_attribute("value", "0.25")
    stand_in.go_on()
    chat.expect_status("completed")
    expect(chat.page.get_by_role("progressbar")).to_have_count(0)
    chat.page.locator("#file").set_input_files(file)
    chat.ask("How many words?")
    first, second = kinds(stand_in, "response.create")
    assert (first.get("task"), second.get("task")) == ("summarize", None)
    assert "long ago" in first["input"]


def test_a_tab_that_the_browser_put_to_sleep_catches_up(stand_in: StandIn, context: BrowserContext, open_page: Open):
    """Its socket was closed meanwhile, as phones and proxies do, and it heard nothing of that."""
    chat = open_page(stand_in.url)
    stand_in.word_seconds = 0.03
    words = " ".join(f"word{number}" for number in range(50))
    chat.send(words)
    chat.wait_for_text("word3 ")
    devtools = context.new_cdp_session(chat.page)
    devtools.send("Page.setWebLifecycleState", {"state": "frozen"})
    stand_in.cut_all(1000)
    while any(not run.over for run in stand_in.runs.values()):
        time.sleep(0.02)
    devtools.send("Page.setWebLifecycleState", {"state": "active"})
    chat.expect_status("completed")
    assert chat.answer.text_content() == words
    expect(chat.answers).to_have_count(1)
    quiet(chat)


@pytest.mark.parametrize(
    "script",
    [
        "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }",
        FORBIDDEN,
    ],
    ids=["full", "forbidden"],
)
def test_without_storage_the_page_works_and_nothing_typed_is_lost(
    stand_in: StandIn, context: BrowserContext, open_page: Open, script: str
):
    context.add_init_script(script)
    chat = open_page(stand_in.url)
    chat.ask("hello")
    chat.input.fill("typed here")
    chat.new()
    chat.send("!refuse this")
    expect(chat.input).to_have_value("!refuse this")
    chat.reopen("hello")
    expect(chat.input).to_have_value("typed here")
    chat.enter()
    chat.expect_status("completed")
    chat.page.get_by_role("button", name="Settings").click()
    chat.page.get_by_label("Appearance").select_option("dark")
    chat.page.get_by_role("button", name="Save").click()
    expect(chat.page.locator("html")).to_have_attribute("data-theme", "dark")


def test_what_can_be_done_with_a_conversation_can_be_done_without_a_server(stand_in: StandIn, open_page: Open):
    """It is done when the server is back."""
    chat = open_page(stand_in.url)
    chat.ask("hello")
    chat.page.wait_for_load_state("networkidle")
    port = stand_in.port
    stand_in.stop()
    expect(chat.banner).to_be_visible()
    chat.choose("hello", "Rename")
    chat.page.get_by_role("textbox", name="Title").fill("renamed")
    chat.page.keyboard.press("Enter")
    expect(chat.page.locator("#title")).to_have_text("renamed")
    chat.page.get_by_role("button", name="How it answers").click()
    chat.page.get_by_label("Temperature").fill("0.5")
    chat.page.get_by_role("button", name="Save").click()
    stand_in.start(port)
    with chat.page.expect_download() as download:
        chat.choose("renamed", "Export as JSON")
    assert download.value.suggested_filename == "renamed.json"
    expect(chat.banner).to_be_hidden()
    while "0.5" not in str(kinds(stand_in, "conversation.update")[-1:]):
        chat.page.wait_for_timeout(10)
    chat.page.reload()
    expect(chat.page.locator("#title")).to_have_text("renamed")
    chat.ask("and on")
    assert kinds(stand_in, "response.create")[-1]["temperature"] == 0.5
    quiet(chat)


def test_a_long_history_is_read_page_by_page(stand_in: StandIn, open_page: Open):
    chat = open_page(stand_in.url)
    chat.ask("first")
    conversation = chat.page.url.split("#")[1]
    stand_in.items[conversation] *= 120
    for number, item in enumerate(stand_in.items[conversation]):
        stand_in.items[conversation][number] = {**item, "id": f"msg_{number}"}
    chat.page.reload()
    expect(chat.questions).to_have_count(120)  # more than the stand-in puts into one snapshot
    expect(chat.answers.last).to_be_in_viewport()
