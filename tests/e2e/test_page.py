"""The chat page against the real server with the echo engine, which answers with the user's own words."""

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import BrowserContext, expect

from tests.e2e.browser import ChatPage
from tests.support.server import ServerProcess

Open = Callable[[str], ChatPage]
LONG = " ".join(f"word{number}" for number in range(400))


def test_a_message_streams_and_completes(server: ServerProcess, open_page: Open):
    chat = open_page(server.url)
    words = " ".join(f"stream{number}" for number in range(150))
    chat.send(words)
    expect(chat.input).to_have_value("")
    chat.wait_for_text("stream3")
    chat.expect_status("streaming")
    part = chat.answer.text_content() or ""
    assert words.startswith(part.strip())
    assert len(part) < len(words)
    chat.expect_status("completed")
    assert chat.answer.text_content() == words
    expect(chat.stop_button).to_be_hidden()


def test_line_ends_and_all_scripts_arrive_unchanged(
    fast_server: ServerProcess, open_page: Open, context: BrowserContext
):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat = open_page(fast_server.url)
    text = "one\ntwo\n\n你好 世界 🫠🥹 龜 👩‍👩‍👧 🇨🇭 नमस्ते"
    chat.input.fill("one")
    chat.input.press("Shift+Enter")
    chat.input.press_sequentially("two")
    expect(chat.input).to_have_value("one\ntwo")
    chat.ask(text)
    assert chat.questions.last.text_content() == text
    assert chat.answer.inner_text() == text
    assert chat.copied() == text


def test_stop_keeps_the_partial_text_across_a_reload_and_the_next_turn_works(server: ServerProcess, open_page: Open):
    """What was written so far stays, marked as stopped."""
    chat = open_page(server.url)
    chat.send(LONG)
    chat.wait_for_text("word5")
    chat.input.press("Escape")
    chat.expect_status("stopped")
    partial = chat.answer.text_content() or ""
    assert LONG.startswith(partial.strip())
    assert len(partial) < len(LONG)
    chat.page.reload()
    chat.expect_status("stopped")
    assert chat.answer.text_content() == partial
    expect(chat.answers.last).to_contain_text("Stopped")
    assert chat.ask("and on we go") == "and on we go"


def test_stop_before_the_first_word_and_twice(server: ServerProcess, open_page: Open):
    """The first stop counts, the second is harmless, and the next message is answered."""
    chat = open_page(server.url)
    chat.ask("first")
    chat.send(LONG)
    chat.stop_button.click()
    chat.input.press("Escape")
    chat.expect_status("stopped")
    assert chat.ask("after the stop") == "after the stop"


def test_a_new_conversation_while_the_old_one_streams(server: ServerProcess, open_page: Open):
    """Nothing of one ever shows in the other."""
    chat = open_page(server.url)
    old = " ".join(f"old{number}" for number in range(120))
    chat.send(old)
    chat.wait_for_text("old3")
    chat.new()
    assert chat.ask("a fresh start") == "a fresh start"
    expect(chat.page.locator("#messages")).not_to_contain_text("old")
    chat.listed.filter(has_text="old0").click()
    chat.expect_status("completed")
    assert chat.answer.text_content() == old
    expect(chat.page.locator("#messages")).not_to_contain_text("fresh")


def test_reload_in_the_middle_of_an_answer_catches_up(server: ServerProcess, open_page: Open):
    chat = open_page(server.url)
    words = " ".join(f"catch{number}" for number in range(300))
    chat.send(words)
    chat.wait_for_text("catch3")
    chat.page.reload()
    chat.expect_status("streaming")
    expect(chat.questions).to_have_count(1)
    chat.expect_status("completed")
    assert chat.answer.text_content() == words
    expect(chat.answers).to_have_count(1)


def test_reopen_from_the_list_and_by_the_back_button(server: ServerProcess, open_page: Open):
    chat = open_page(server.url)
    chat.ask("about apples")
    chat.new()
    chat.ask("about pears")
    expect(chat.listed.first).to_have_text("about pears")
    chat.reopen("about apples")
    assert chat.answer.text_content() == "about apples"
    expect(chat.listed.filter(has_text="about apples")).to_have_attribute("aria-current", "page")
    chat.page.go_back()
    expect(chat.answer).to_have_text("about pears")


def test_an_address_that_names_nothing(fast_server: ServerProcess, open_page: Open):
    """Whoever wrote it: the page opens, and says what is not there."""
    for address, shown in (("#%", "#welcome"), ("#conv_%E0%A4", "#welcome"), ("#conv_0", "#notice")):
        chat = open_page(f"{fast_server.url}/{address}")
        expect(chat.page.locator(shown)).to_be_visible()
        expect(chat.page.get_by_role("button", name="Model")).to_be_visible()


def test_the_conversation_is_there_after_a_server_restart(tmp_path: Path, open_page: Open):
    """The open page reconnects by itself and goes on."""
    server = ServerProcess(tmp_path, "--echo-rate", "200", "--echo-ttft", "5").start()
    try:
        chat = open_page(server.url)
        chat.ask("remember the lighthouse")
        chat.input.fill("typed before the restart")
        server.restart()
        expect(chat.banner).to_be_hidden(timeout=20_000)
        expect(chat.input).to_have_value("typed before the restart")
        chat.enter()
        expect(chat.answers).to_have_count(2)
        chat.expect_status("completed")
        assert chat.answer.text_content() == "typed before the restart"
        chat.page.reload()
        expect(chat.questions).to_have_count(2)
        expect(chat.questions.first).to_have_text("remember the lighthouse")
        # While the server was away the browser itself reported the failed attempts.
        chat.problems[:] = [problem for problem in chat.problems if "WebSocket" not in problem]
    finally:
        server.stop()


def test_a_refusal_is_shown_in_place_and_the_text_stays(server: ServerProcess, open_page: Open):
    chat = open_page(server.url)
    chat.ask("hello")
    too_long = "x" * 1_100_000  # more than the server takes in one message
    chat.input.fill(too_long)
    chat.enter()
    expect(chat.problem).to_be_visible(timeout=60_000)  # a browser needs seconds for so long a line
    assert chat.input.input_value() == too_long
    assert chat.ask("still here") == "still here"
