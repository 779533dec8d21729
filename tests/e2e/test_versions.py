"""Saying and answering anew: versions of a turn, and the way between them."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.browser import ChatPage
from tests.support.server import ServerProcess

Open = Callable[[str], ChatPage]


@pytest.fixture
def chat(fast_server: ServerProcess, open_page: Open) -> ChatPage:
    return open_page(fast_server.url)


def texts(chat: ChatPage) -> list[str]:
    return chat.page.locator(".message .body").all_inner_texts()


def expect_texts(chat: ChatPage, *turns: str) -> None:
    """The echo engine answers with the question."""
    expect(chat.page.locator(".message .body")).to_have_text([text for turn in turns for text in (turn, turn)])
    expect(chat.page.locator(".message[data-status=completed]")).to_have_count(2 * len(turns))


def edit(chat: ChatPage, old: str, new: str) -> None:
    question = chat.page.locator(".message.user", has_text=old)
    question.hover()
    question.get_by_role("button", name="Edit").click()
    field = chat.page.get_by_role("textbox", name="Edit the message")
    expect(field).to_be_focused()
    expect(field).to_have_value(old)
    field.fill(new)
    field.press("Enter")


def test_an_answer_is_made_again_and_both_are_kept(chat: ChatPage):
    """The first turn, too; another device sees the same."""
    chat.ask("hello")
    chat.page.get_by_role("button", name="Answer again").click()
    expect(chat.page.get_by_label("Version 2 of 2")).to_be_visible()
    expect_texts(chat, "hello")
    expect(chat.page.locator("#conversations li[data-running]")).to_have_count(0)
    chat.ask("and then")
    chat.page.reload()
    expect_texts(chat, "hello", "and then")
    chat.page.get_by_role("button", name="Earlier version").click()
    expect(chat.page.get_by_label("Version 1 of 2")).to_be_visible()
    expect_texts(chat, "hello")
    chat.ask("another way")
    chat.page.get_by_role("button", name="Later version").click()
    expect(chat.page.get_by_label("Version 2 of 2")).to_be_visible()
    expect_texts(chat, "hello", "and then")  # what followed that version came with it
    chat.page.get_by_role("button", name="Earlier version").click()
    expect_texts(chat, "hello", "another way")


def test_two_tabs_answer_again_at_the_same_moment(chat: ChatPage, open_page: Open):
    """All versions are kept, in both."""
    chat.ask("hello")
    other = open_page(chat.page.url)
    expect_texts(other, "hello")
    for tab in (chat, other):
        tab.page.get_by_role("button", name="Answer again").click()
    for tab in (chat, other):
        expect(tab.page.get_by_label("Version 3 of 3")).to_be_visible()
        expect_texts(tab, "hello")


def test_two_devices_change_what_is_kept_with_a_conversation(
    chat: ChatPage, fast_server: ServerProcess, browser: Browser
):
    """Neither takes back what the other one did."""
    chat.ask("on two devices")
    context = browser.new_context()
    try:
        other = ChatPage(context, fast_server.url)
        expect(other.listed.first).to_have_text("on two devices")
        chat.page.get_by_role("button", name="Answer again").click()
        expect(chat.page.get_by_label("Version 2 of 2")).to_be_visible()
        other.choose("on two devices", "Rename")
        other.page.get_by_role("textbox", name="Title").fill("renamed there")
        other.page.keyboard.press("Enter")
        expect(chat.page.locator("#title")).to_have_text("renamed there")
        expect(chat.page.get_by_label("Version 2 of 2")).to_be_visible()
        chat.page.reload()
        expect(chat.page.get_by_label("Version 2 of 2")).to_be_visible()
        assert other.problems == []
    finally:
        context.close()


def test_a_message_is_edited_where_it_stands(chat: ChatPage, fast_server: ServerProcess, open_page: Open):
    """What came after it is on the other branch; a second tab follows; nothing is lost."""
    for text in ("first", "second", "third"):
        chat.ask(text)
    other = open_page(chat.page.url)
    expect_texts(other, "first", "second", "third")
    edit(chat, "second", "changed")
    for tab in (chat, other):
        expect_texts(tab, "first", "changed")
        expect(tab.page.get_by_label("Version 2 of 2")).to_be_visible()
    chat.ask("fourth")
    expect_texts(other, "first", "changed", "fourth")
    other.page.get_by_role("button", name="Earlier version").click()
    for tab in (other, chat):
        expect_texts(tab, "first", "second", "third")
    # Inside a version there can be versions.
    edit(chat, "third", "3rd")
    expect_texts(chat, "first", "second", "3rd")
    expect(chat.page.locator(".versions:visible")).to_have_text(["1 / 2", "2 / 2"])
    chat.page.locator(".versions:visible").first.get_by_role("button", name="Later version").click()
    expect_texts(chat, "first", "changed", "fourth")
    chat.page.reload()
    expect_texts(chat, "first", "changed", "fourth")


def test_an_edit_is_not_lost_when_another_tab_changes_the_conversation(chat: ChatPage, open_page: Open):
    """While its message is there it goes on; else its text is in the text field."""
    chat.ask("first")
    chat.ask("second")
    other = open_page(chat.page.url)
    expect_texts(other, "first", "second")
    chat.input.press("ArrowUp")
    field = chat.page.get_by_role("textbox", name="Edit the message")
    field.fill("typed so far")
    other.ask("third")
    expect(chat.questions).to_have_count(3)
    expect(field).to_have_value("typed so far")
    edit(other, "second", "2nd")
    expect_texts(chat, "first", "2nd")
    expect(field).to_have_count(0)
    expect(chat.input).to_have_value("typed so far")


def test_the_arrow_key_edits_the_last_message_and_escape_leaves_it(chat: ChatPage):
    chat.ask("first")
    chat.input.press("ArrowUp")
    field = chat.page.get_by_role("textbox", name="Edit the message")
    expect(field).to_have_value("first")
    field.fill("not this")
    field.press("Escape")
    expect(field).to_have_count(0)
    expect_texts(chat, "first")
    chat.input.fill("typed")
    chat.input.press("ArrowUp")
    expect(field).to_have_count(0)


def test_a_failed_or_stopped_answer_can_be_tried_again(server: ServerProcess, open_page: Open):
    chat = open_page(server.url)
    words = " ".join(f"word{number}" for number in range(60))
    chat.send(words)
    chat.wait_for_text("word3 ")
    chat.input.press("Escape")
    chat.expect_status("stopped")
    chat.page.get_by_role("button", name="Answer again").click()
    chat.expect_status("completed")
    assert texts(chat) == [words, words]
    expect(chat.page.get_by_label("Version 2 of 2")).to_be_visible()
    chat.page.get_by_role("button", name="Earlier version").click()
    chat.expect_status("stopped")
    assert words.startswith(texts(chat)[1].strip())


def test_how_fast_an_answer_came_is_told_on_demand(server: ServerProcess, open_page: Open):
    chat = open_page(server.url)
    chat.ask(" ".join(f"word{number}" for number in range(30)))
    figures = chat.answers.last.locator(".figures")
    expect(figures).to_be_empty()
    chat.page.get_by_role("button", name="Speed").click()
    expect(figures).to_contain_text("30 tokens")
    expect(figures).to_contain_text("tokens/s")
    chat.page.get_by_role("button", name="Speed").click()
    expect(figures).to_be_empty()
