"""What was typed or attached is there again: after a reload, a look elsewhere, a deletion, and an answer in between."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.e2e.browser import ChatPage
from tests.e2e.standin import StandIn
from tests.support.server import ServerProcess

Open = Callable[[str], ChatPage]
NOTES = "# Notes\n\n````\ncode\n````\n"


@pytest.fixture
def chat(fast_server: ServerProcess, open_page: Open) -> ChatPage:
    return open_page(fast_server.url)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    file = tmp_path / "notes.md"
    file.write_text(NOTES)
    return file


def attached(chat: ChatPage) -> Locator:
    return chat.page.locator("#files li")


def edit(chat: ChatPage, typed: str) -> Locator:
    """Begins to edit the first message, and returns the text field in its place."""
    chat.questions.first.hover()
    chat.page.get_by_role("button", name="Edit").first.click()
    field = chat.page.get_by_role("textbox", name="Edit the message")
    field.fill(typed)
    return field


def test_attached_files_wait_in_their_conversation(chat: ChatPage, notes: Path):
    """Also in one that is not made yet; after a reload they are sent as if nothing had been."""
    chat.ask("about notes")
    for begin in (lambda: None, chat.new):
        begin()
        chat.page.locator("#file").set_input_files(notes)
        expect(attached(chat)).to_have_text("notes.md")
    chat.reopen("about notes")
    expect(attached(chat)).to_have_text("notes.md")
    chat.new()
    expect(attached(chat)).to_have_text("notes.md")
    chat.page.reload()
    expect(attached(chat)).to_have_text("notes.md")
    chat.ask("Read it.")
    expect(chat.questions).to_have_text("Read it.")
    chat.page.locator(".attached summary").click()
    assert chat.page.locator(".attached pre").text_content() == NOTES
    chat.reopen("about notes")
    chat.page.get_by_role("button", name="Remove notes.md").click()
    chat.page.reload()
    expect(chat.questions).to_have_count(1)
    expect(attached(chat)).to_have_count(0)


def test_a_message_with_a_file_that_was_not_accepted_comes_back_as_it_was(
    stand_in: StandIn, open_page: Open, notes: Path
):
    """And sent once more it is the same turn."""
    chat = open_page(stand_in.url)
    chat.page.locator("#file").set_input_files(notes)
    chat.send("!silent as the grave")
    for times in (1, 2):
        while len(sent := [command for command in stand_in.commands if command.get("input")]) < times:
            chat.page.wait_for_timeout(10)
        assert len({(command["id"], command["input"]) for command in sent}) == 1
        chat.page.reload()
        expect(chat.input).to_have_value("!silent as the grave")
        expect(attached(chat)).to_have_text("notes.md")
        chat.enter()


def test_what_is_typed_into_a_message_waits_there(chat: ChatPage):
    chat.ask("to be said better")
    chat.new()
    chat.ask("elsewhere for a while")
    chat.reopen("to be said better")
    field = edit(chat, "said better")
    chat.reopen("elsewhere for a while")
    expect(field).to_have_count(0)
    chat.reopen("to be said better")
    expect(field).to_have_value("said better")
    chat.page.reload()
    expect(field).to_have_value("said better")
    field.press("Enter")
    expect(chat.questions).to_have_text("said better")
    chat.expect_status("completed")
    field = edit(chat, "said worse")
    field.press("Escape")
    chat.page.reload()
    expect(chat.answer).to_have_text("said better")
    expect(field).to_have_count(0)


def test_another_version_that_was_not_accepted_comes_back(stand_in: StandIn, open_page: Open):
    chat = open_page(stand_in.url)
    chat.ask("first")
    edit(chat, "!silent version").press("Enter")
    chat.page.get_by_role("button", name="Stop the answer").wait_for()
    chat.input.fill("half typed")
    chat.page.reload()
    expect(chat.questions).to_have_text("first")
    expect(chat.input).to_have_value("!silent version\nhalf typed")


def test_a_message_is_not_sent_anew_while_another_tab_is_answered(server: ServerProcess, open_page: Open):
    """It can be when that is over, and is not lost until then."""
    chat = open_page(server.url)
    chat.ask("first")
    other = open_page(chat.page.url)
    other.expect_status("completed")
    field = edit(chat, "said better")
    other.send("word " * 400)
    chat.wait_for_text("word")
    field.press("Enter")
    expect(field).to_have_value("said better")
    other.input.press("Escape")
    chat.expect_status("stopped")
    field.press("Enter")
    expect(chat.questions).to_have_text("said better")


def test_what_was_typed_in_a_conversation_that_another_tab_deletes_begins_a_new_one(
    chat: ChatPage, open_page: Open, notes: Path
):
    chat.ask("not for long")
    other = open_page(chat.page.url)
    other.expect_status("completed")
    chat.input.fill("a long thought")
    chat.page.locator("#file").set_input_files(notes)
    other.choose("not for long", "Delete")
    other.page.reload()  # what was not taken back until then is done
    expect(chat.page.locator("#notice")).to_contain_text("not here")
    chat.input.press_sequentially(", and more")
    chat.new()
    expect(chat.input).to_have_value("a long thought, and more")
    expect(attached(chat)).to_have_text("notes.md")


def test_how_a_new_conversation_is_to_be_answered_waits_for_its_first_turn(stand_in: StandIn, open_page: Open):
    chat = open_page(stand_in.url)
    chat.ask("elsewhere")
    chat.new()
    chat.page.get_by_role("button", name="How it answers").click()
    prompt = chat.page.get_by_label("System prompt")
    prompt.fill("Be brief.")
    # A selection that ends beside the dialog, and a click there, throw nothing away.
    box = prompt.bounding_box()
    assert box is not None
    chat.page.mouse.move(box["x"] + 5, box["y"] + 5)
    chat.page.mouse.down()
    chat.page.mouse.move(5, 5)
    chat.page.mouse.up()
    chat.page.mouse.click(5, 5)
    chat.page.get_by_role("button", name="Save").click()
    chat.reopen("elsewhere")
    chat.new()
    chat.page.reload()
    chat.ask("hello")
    chat.new()
    chat.ask("hello again")
    *_, first, second = [command for command in stand_in.commands if command.get("input")]
    assert first["instructions"] == "Be brief."
    assert "instructions" not in second


def test_cells_of_a_table_are_pasted_as_text(chat: ChatPage):
    """Office programs put a picture beside them."""
    prevented = chat.page.evaluate(
        "() => { const data = new DataTransfer(); data.setData('text/plain', 'one');"
        " data.items.add(new File(['x'], 'image.png', { type: 'image/png' }));"
        " const paste = new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true });"
        " return !document.getElementById('input').dispatchEvent(paste); }"
    )
    assert not prevented
    expect(chat.problem).to_be_hidden()


def test_a_file_that_is_dropped_beside_the_text_field_is_attached(chat: ChatPage):
    """Else the browser would leave the page and show it."""
    drop = (
        "(list) => { const data = new DataTransfer(); data.items.add(new File(['x'], 'dropped.txt'));"
        " return list.dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })); }"
    )
    assert chat.page.locator("#sidebar").evaluate(drop) is False
    expect(attached(chat)).to_have_text("dropped.txt")
