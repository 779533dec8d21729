"""Conversations as a whole, through the page: titles, search, deletion, files, models, and how they are answered."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.e2e.browser import ChatPage
from tests.e2e.standin import StandIn, message
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
    expect(field).to_be_focused()
    chat.page.keyboard.press("Escape")
    expect(chat.page.get_by_role("dialog")).to_have_count(0)
    chat.page.reload()
    expect(chat.page.locator("#title")).to_have_text("Rayleigh")


def test_five_hundred_conversations_are_listed_by_pages_and_searched_to_the_last(stand_in: StandIn, open_page: Open):
    """Opening an old one by its address does not make a gap in the list."""
    for number in range(500):
        name = f"conv_{number}"
        stand_in.conversations[name] = {
            "id": name, "created_at": number, "updated_at": number, "metadata": {"title": f"Topic {number}"}
        }  # fmt: skip
        stand_in.items[name] = [
            message(f"msg_{number}", "user", f"Said {number} times: <b>Hello</b>", f"resp_{number}")
        ]
    chat = open_page(f"{stand_in.url}#conv_3")
    expect(chat.questions).to_have_text("Said 3 times: <b>Hello</b>")
    expect(chat.listed).to_have_count(31)
    chat.page.get_by_role("button", name="Show more").click()
    expect(chat.listed.nth(59)).to_have_text("Topic 440")
    expect(chat.listed).to_have_count(61)
    chat.page.keyboard.press("Control+k")
    chat.page.keyboard.type("topic 47")
    expect(chat.listed).to_have_count(11)
    chat.page.keyboard.type("7")
    expect(chat.listed).to_have_text(["Topic 477"])
    chat.page.keyboard.type("x")
    expect(chat.page.locator("#list-note")).to_have_text("Nothing found.")
    chat.page.get_by_role("searchbox").fill("times: <B> 77 ")
    expect(chat.listed).to_have_text(
        [f"Topic {number}Said {number} times: <b>Hello</b>" for number in (477, 377, 277, 177, 77)]
    )
    expect(chat.listed.last.locator("mark")).to_have_text(["77", "times:", "<b>"])
    # One that the list was not read to: what can be done with it is the same.
    chat.choose("Topic 77", "Rename")
    field = chat.page.get_by_role("textbox", name="Title")
    expect(field).to_have_value("Topic 77")
    field.fill("Anew")
    field.press("Enter")
    expect(chat.listed.last).to_contain_text("Anew")
    with chat.page.expect_download() as download:
        chat.choose("Anew", "Export as Markdown")
    assert download.value.suggested_filename == "Anew.md"
    chat.page.get_by_role("searchbox").press("Escape")
    expect(chat.listed).to_have_count(62)


def test_what_was_said_is_found_and_shown(chat: ChatPage):
    """The conversation opens at the message, not at its end."""
    said = "Where is the old lighthouse? " + "It is by the sea.\n" * 60
    chat.ask("A chat about the coast")
    chat.ask(said)
    chat.ask("Something else.\n" * 60)
    chat.new()
    chat.page.get_by_role("searchbox").fill("LIGHTHOUSE where")
    expect(chat.listed).to_have_count(1)
    expect(chat.listed).to_contain_text("Where is the old lighthouse?")
    expect(chat.listed.locator("mark")).to_have_text(["Where", "lighthouse"])
    chat.listed.click()
    expect(chat.answers.nth(1)).to_be_in_viewport()
    expect(chat.answers.last).not_to_be_in_viewport()
    latest = chat.page.get_by_role("button", name="Latest")
    expect(latest).to_be_visible()
    chat.new()
    expect(latest).to_be_hidden()


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


def test_a_deletion_is_seen_in_all_tabs_and_done_when_it_can_no_longer_be_taken_back(
    fast_server: ServerProcess, context: BrowserContext, open_page: Open
):
    """Unless somebody goes on with the conversation meanwhile: nothing that was typed is lost."""
    context.clock.install()
    one, two = open_page(fast_server.url), open_page(fast_server.url)
    for title in ("first of two", "second of two"):
        one.new()
        one.ask(title)
    both = two.listed.filter(has_text="of two")
    expect(both).to_have_count(2)
    for title in ("first of two", "second of two"):
        one.choose(title, "Delete")
    expect(both).to_have_count(0)
    expect(one.page.locator("#toast")).to_contain_text("2 conversations were deleted.")
    one.page.get_by_role("button", name="Undo").click()
    expect(both).to_have_count(2)
    # Somebody goes on with one; the other tab deletes the other one, too.
    two.reopen("first of two")
    one.page.wait_for_timeout(1_100)  # the server tells times in seconds
    for title in ("first of two", "second of two"):
        one.choose(title, "Delete")
    two.ask("said meanwhile")
    one.page.clock.fast_forward(9_000)
    expect(one.page.locator("#toast")).to_have_text("“first of two” is kept: it was gone on with elsewhere.")
    for tab in (one, two):
        expect(tab.listed.filter(has_text="of two")).to_have_text("first of two")
    two.page.reload()
    expect(two.questions).to_have_count(2)
    expect(both).to_have_text("first of two")


def test_two_tabs_delete_the_same_conversation(stand_in: StandIn, context: BrowserContext, open_page: Open):
    context.clock.install()
    one, two = open_page(stand_in.url), open_page(stand_in.url)
    one.ask("unwanted")
    expect(two.listed).to_have_text("unwanted")
    two.page.get_by_role("button", name="More for “unwanted”").click()  # opened before the other tab deletes
    one.choose("unwanted", "Delete")
    two.page.get_by_role("menuitem", name="Delete").click()
    for tab in (one, two):
        tab.page.clock.fast_forward(9_000)
        expect(tab.listed).to_have_count(0)
        expect(tab.page.locator("#toast")).to_be_hidden()
    expect(one.page.locator("#list-note")).to_have_text("Nothing here yet.")
    assert stand_in.conversations == {}


def test_a_file_that_somebody_else_wrote_is_inert(chat: ChatPage, context: BrowserContext, tmp_path: Path):
    """Title, texts and names in an imported conversation; and the name of an attached file."""
    hostile = "<img src=x onerror=window.hit=1>"
    messages: list[dict] = [{"role": "user", "content": f"File: {hostile}\n````\n{hostile}\n````\n\n{hostile}"}]
    messages.append({"role": "assistant", "content": [{"text": f"[x](javascript:window.hit=1) {hostile}"}, None, 5]})
    file = tmp_path / f"{hostile.replace('/', '')}.json"
    file.write_text(
        json.dumps({"metadata": {"title": hostile, "root": "resp_x", "__proto__": 1}, "messages": messages})
    )
    chat.page.get_by_role("button", name="Settings").click()
    with chat.page.expect_file_chooser() as chooser:
        chat.page.get_by_role("button", name="Import a conversation").click()
    chooser.value.set_files(file)
    expect(chat.page.locator("#title")).to_have_text(hostile)
    expect(chat.questions).to_have_text(hostile)
    expect(chat.answer).to_contain_text(hostile)
    chat.page.locator("#file").set_input_files(file)
    expect(chat.page.locator("#files")).to_contain_text(file.name)
    chat.ask("What is it?")
    chat.page.get_by_role("searchbox").fill("[x](javascript")
    expect(chat.listed.first.locator("mark")).to_have_text("[x](javascript")
    assert chat.page.locator("img").count() == 0
    assert chat.page.evaluate("window.hit") is None


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
    chat.page.get_by_label("Top p").fill("0.9")
    chat.page.get_by_label("Longest answer").fill("64")
    chat.page.get_by_role("button", name="Save").click()
    chat.ask("first")
    chat.ask("second")
    chat.page.reload()
    chat.expect_status("completed")
    chat.ask("third")
    turns = [command for command in stand_in.commands if command["type"] == "response.create" and command["input"]]
    kept = {"instructions": prompt.strip(), "temperature": 0.3, "top_p": 0.9, "max_output_tokens": 64}
    for turn in turns:
        assert {key: turn[key] for key in kept} == kept
        assert "model" not in turn
    chat.page.get_by_role("button", name="How it answers").click()
    expect(chat.page.get_by_label("System prompt")).to_have_value(prompt.strip())
    chat.page.get_by_label("System prompt").fill("")
    chat.page.get_by_label("Temperature").fill("7")
    chat.page.get_by_role("button", name="Save").click()
    expect(chat.page.get_by_role("dialog")).to_be_visible()  # no such temperature
    for label in ("Temperature", "Top p"):
        chat.page.get_by_label(label).fill("")
    chat.page.get_by_role("button", name="Save").click()
    chat.ask("fourth")
    assert not {"instructions", "temperature", "top_p"} & stand_in.commands[-1].keys()
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
