"""Conversations as a whole, through the page: titles, search, deletion, files, models, and how they are answered."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.browser import ChatPage
from tests.e2e.standin import StandIn
from tests.support.server import ServerProcess

Open = Callable[[str], ChatPage]


@pytest.fixture
def chat(fast_server: ServerProcess, open_page: Open) -> ChatPage:
    return open_page(fast_server.url)


def test_a_title_is_made_from_the_first_turn_and_can_be_changed(
    chat: ChatPage, fast_server: ServerProcess, open_page: Open
):
    """Another tab shows it at once, and a reload later."""
    chat.ask("why is the sky blue?")
    expect(chat.page.locator("#title")).to_have_text("why is the sky blue?")
    other = open_page(fast_server.url)
    expect(other.listed.first).to_have_text("why is the sky blue?")
    chat.choose("why is the sky blue?", "Rename")
    field = chat.page.get_by_role("textbox", name="Title")
    expect(field).to_be_focused()
    field.fill("Rayleigh")
    field.press("Enter")
    for tab in (chat, other):
        expect(tab.listed.first).to_have_text("Rayleigh")
    expect(chat.page.locator("#title")).to_have_text("Rayleigh")
    chat.page.locator("#title").dblclick()
    chat.page.keyboard.press("Escape")
    expect(chat.page.get_by_role("dialog")).to_have_count(0)
    chat.page.reload()
    expect(chat.page.locator("#title")).to_have_text("Rayleigh")


def test_titles_are_searched_also_those_that_are_not_listed_yet(stand_in: StandIn, open_page: Open):
    for number in range(80):
        title = f"Topic {number}"
        stand_in.conversations[f"conv_{number}"] = {
            "id": f"conv_{number}", "created_at": number, "updated_at": number, "metadata": {"title": title}
        }  # fmt: skip
        stand_in.items[f"conv_{number}"] = []
    chat = open_page(stand_in.url)
    expect(chat.listed).to_have_count(30)
    chat.page.keyboard.press("Control+k")
    chat.page.keyboard.type("topic 7")
    expect(chat.listed).to_have_count(11)
    chat.page.keyboard.type("7")
    expect(chat.listed).to_have_text(["Topic 77"])
    chat.page.keyboard.type("x")
    expect(chat.page.locator("#list-note")).to_have_text("No title has that.")
    chat.page.keyboard.press("Escape")
    expect(chat.listed).to_have_count(80)


def test_a_deletion_can_be_taken_back_until_it_is_done(chat: ChatPage):
    chat.ask("to be deleted")
    address = chat.page.url
    chat.choose("to be deleted", "Delete")
    expect(chat.listed.filter(has_text="to be deleted")).to_have_count(0)
    expect(chat.page.locator("#welcome")).to_be_visible()
    expect(chat.page.locator("#toast")).to_contain_text("“to be deleted” was deleted.")
    chat.page.get_by_role("button", name="Undo").click()
    expect(chat.listed.filter(has_text="to be deleted")).to_have_count(1)
    expect(chat.page.locator("#toast")).to_be_hidden()
    chat.choose("to be deleted", "Delete")
    chat.page.goto("about:blank")
    chat.page.goto(address)
    expect(chat.page.locator("#notice")).to_be_visible()
    expect(chat.listed.filter(has_text="to be deleted")).to_have_count(0)


def test_a_conversation_goes_out_as_files_and_comes_in_again(chat: ChatPage, tmp_path: Path):
    chat.ask("What is **bold**? 你好")
    chat.ask("And then?")
    title = "What is **bold**? 你好"
    with chat.page.expect_download() as download:
        chat.choose(title, "Export as Markdown")
    assert download.value.suggested_filename == "What-is-bold-你好.md"
    written = Path(download.value.path()).read_text()
    turns = [f"## You\n\n{text}\n\n## Answer\n\n{text}\n" for text in (title, "And then?")]
    assert written == f"# {title}\n\n" + "\n".join(turns)
    with chat.page.expect_download() as download:
        chat.choose(title, "Export as JSON")
    file = tmp_path / "out.json"
    download.value.save_as(file)
    exported = json.loads(file.read_text())
    assert exported["metadata"] == {"title": title}
    assert [message["role"] for message in exported["messages"]] == ["user", "assistant"] * 2
    exported["metadata"]["title"] = "Came in"
    file.write_text(json.dumps(exported))
    for content in (file.read_text(), "no conversation"):
        file.write_text(content)
        chat.page.get_by_role("button", name="Settings").click()
        with chat.page.expect_file_chooser() as chooser:
            chat.page.get_by_role("button", name="Import a conversation").click()
        chooser.value.set_files(file)
        expect(chat.page.locator("#title")).to_have_text("Came in")
        expect(chat.questions).to_have_text([title, "And then?"])
    expect(chat.page.locator("#toast")).to_have_text("“out.json” is no exported conversation.")
    # What was said before goes to the model, and what is said now can be said anew.
    chat.ask("now here")
    chat.page.get_by_role("button", name="Answer again").last.click()
    expect(chat.page.get_by_label("Version 2 of 2")).to_be_visible()
    expect(chat.questions).to_have_count(3)


def test_how_a_conversation_is_answered(stand_in: StandIn, open_page: Open):
    """System prompt and sampling go with every turn, are kept with the conversation, and can be taken back."""
    chat = open_page(stand_in.url)
    prompt = "Answer in one word. " * 50
    chat.page.get_by_role("button", name="How it answers").click()
    chat.page.get_by_label("System prompt").fill(prompt)
    chat.page.get_by_label("Temperature").fill("0.3")
    chat.page.get_by_label("Longest answer").fill("64")
    chat.page.get_by_role("button", name="Save").click()
    chat.ask("first")
    chat.ask("second")
    chat.page.reload()
    chat.expect_status("completed")
    chat.ask("third")
    turns = [command for command in stand_in.commands if command["type"] == "response.create" and command["input"]]
    kept = {"instructions": prompt.strip(), "temperature": 0.3, "max_output_tokens": 64}
    for turn in turns:
        assert {key: turn[key] for key in kept} == kept
        assert not {"top_p", "model"} & turn.keys()
    chat.page.get_by_role("button", name="How it answers").click()
    expect(chat.page.get_by_label("System prompt")).to_have_value(prompt.strip())
    chat.page.get_by_label("System prompt").fill("")
    chat.page.get_by_label("Temperature").fill("7")
    chat.page.get_by_role("button", name="Save").click()
    expect(chat.page.get_by_role("dialog")).to_be_visible()  # no such temperature
    chat.page.get_by_label("Temperature").fill("")
    chat.page.get_by_role("button", name="Save").click()
    chat.ask("fourth")
    assert not {"instructions", "temperature"} & stand_in.commands[-1].keys()
    assert stand_in.commands[-1]["max_output_tokens"] == 64


def test_the_real_server_keeps_how_a_conversation_is_answered(chat: ChatPage):
    chat.page.get_by_role("button", name="How it answers").click()
    chat.page.get_by_label("Longest answer").fill("3")
    chat.page.get_by_role("button", name="Save").click()
    chat.send("one two three four five")
    chat.expect_status("shortened")
    expect(chat.answer).to_have_text("one two three")
    expect(chat.answers.last).to_contain_text("Cut off at the length limit")


def test_models_and_how_they_are(stand_in: StandIn, open_page: Open):
    """States that the page does not know are told as they come; a model that goes is told, too."""
    stand_in.models = [
        {"id": "small", "state": "ready"},
        {"id": "big", "state": "loading", "progress": 0.4},
        {"id": "broken", "state": "failed", "detail": "no weights"},
        {"id": "odd", "state": "hibernating"},
        {"id": "bare"},
    ]
    chat = open_page(stand_in.url)
    menu = chat.page.get_by_role("button", name="Model: Default model")
    menu.click()
    entries = chat.page.get_by_role("menuitemradio")
    expect(entries).to_have_text(
        ["Default model", "smallready", "bigloading 40 %", "brokenfailed: no weights", "oddhibernating", "bareready"]
    )
    expect(entries.first).to_be_focused()
    chat.page.keyboard.press("ArrowDown")
    chat.page.keyboard.press("ArrowDown")
    chat.page.keyboard.press("Enter")
    expect(chat.page.get_by_role("menu")).to_have_count(0)
    stand_in.models[1] = {"id": "big", "state": "ready"}  # looked at again while it is loading
    expect(chat.page.get_by_role("button", name="Model: big", exact=True)).to_be_visible()
    chat.ask("hello")
    assert [command["model"] for command in stand_in.commands if command.get("input") == "hello"] == ["big"]
    chat.page.reload()
    chat.expect_status("completed")
    expect(chat.page.get_by_role("button", name="Model: big", exact=True)).to_be_visible()
    del stand_in.models[1]
    chat.page.reload()
    expect(chat.page.get_by_role("button", name="Model: big, not there any more")).to_be_visible()
