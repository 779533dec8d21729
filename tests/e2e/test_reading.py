"""For everyone: screen readers, keyboards, dark rooms, Chinese, slow lines. And the pictures for README."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.e2e.browser import ChatPage
from tests.support.server import ROOT, ServerProcess

Open = Callable[[str], ChatPage]

AXE = ROOT / ".tools" / "node_modules" / "axe-core" / "axe.min.js"
FIRST_PAINT_BYTES = 100_000
IMAGES = ROOT / "docs" / "images"
PAPER = {"dark": "rgb(24, 23, 21)", "light": "rgb(251, 250, 247)"}

ANSWER = """Each word is written to **Redis first** and then sent to you, so an answer survives a lost connection.

1. Your message joins the line.
2. The model answers, word by word.
3. Close the lid, come back: the rest is here.

```python
async for event in client.respond("Why?"):
    print(event.delta, end="")   # every word once
```

| lost | what you see |
|---|---|
| the connection | a pause |
| the gateway | a pause |
"""


def serious_faults(page: Page) -> list[str]:
    """What axe-core finds that keeps people out, in the page as it is now."""
    page.evaluate(AXE.read_text())
    # Not in the middle of a transition, where colours are between two.
    page.evaluate("Promise.all(document.getAnimations().filter(a => a.transitionProperty).map(a => a.finished))")
    found: dict[str, Any] = page.evaluate("axe.run({ resultTypes: ['violations'] })")
    return [
        f"{fault['id']}: {node['html'][:120]}"
        for fault in found["violations"]
        if fault["impact"] in {"serious", "critical"}
        for node in fault["nodes"]
    ]


@pytest.fixture
def chat(fast_server: ServerProcess, open_page: Open) -> ChatPage:
    return open_page(fast_server.url)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_nothing_keeps_anybody_out_and_nothing_is_wider_than_the_screen(
    fast_server: ServerProcess, browser: Browser, *, width: int, height: int, scheme: Literal["light", "dark"]
):
    touch = width < 500
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, has_touch=touch, is_mobile=touch
    )
    try:
        chat = ChatPage(context, fast_server.url)
        page = chat.page
        expect(page.locator("body")).to_have_css("background-color", PAPER[scheme])  # as the system wants it
        assert serious_faults(page) == []
        chat.ask(
            "a" * 300 + f"\nfits\n\n```python\n{'x = 1 # ' * 40}\n```\n\n| {'wide | ' * 40}\n|{'---|' * 40}\n| a |"
        )
        expect(chat.answer.locator(".hljs-number").first).to_be_visible()
        assert serious_faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#scroll").evaluate("box => box.scrollWidth <= box.clientWidth")
        page.get_by_role("button", name="How it answers").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert serious_faults(page) == []
        page.keyboard.press("Escape")
        if touch:
            page.get_by_role("button", name="Show conversations").click()
            expect(chat.listed.first).to_be_in_viewport()
            page.get_by_role("searchbox").fill("fits")
            expect(chat.listed.locator("mark").first).to_be_visible()
            assert serious_faults(page) == []
            page.get_by_role("searchbox").press("Escape")
            page.keyboard.press("Escape")
            expect(page.locator("#sidebar")).not_to_be_in_viewport()
        else:
            page.get_by_role("button", name="More for “a").first.click()
            assert serious_faults(page) == []
        assert chat.problems == []
    finally:
        context.close()


def test_a_screen_reader_hears_how_it_goes_and_not_every_word(server: ServerProcess, open_page: Open):
    chat = open_page(server.url)
    heard = (
        "() => { window.heard = []; const at = document.getElementById('announcer');"
        " new MutationObserver(() => window.heard.push(at.textContent)).observe(at, { childList: true }); }"
    )
    chat.page.evaluate(heard)
    chat.ask(" ".join(f"word{number}" for number in range(30)))
    assert chat.page.evaluate("window.heard") == ["Answering.", "Answer complete."]
    expect(chat.page.get_by_role("log")).to_have_attribute("aria-live", "off")


def test_everything_with_the_keyboard(chat: ChatPage):
    page = chat.page
    expect(chat.input).to_be_focused()
    page.keyboard.type("by keyboard")
    page.keyboard.press("Enter")
    chat.expect_status("completed")
    page.keyboard.press("Control+/")
    expect(page.get_by_role("dialog")).to_contain_text("Edit your last message")
    page.keyboard.press("Escape")
    expect(chat.input).to_be_focused()
    page.keyboard.type("what?")  # a question mark that is typed opens nothing
    expect(chat.input).to_have_value("what?")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Control+Shift+O")
    expect(page.locator("#welcome")).to_be_visible()
    expect(chat.input).to_be_focused()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.press("Tab")
    expect(chat.listed.first).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="More for “by keyboard”")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("menuitem", name="Rename")).to_be_focused()
    page.keyboard.press("End")
    expect(page.get_by_role("menuitem", name="Delete")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("menuitem", name="Rename")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("menu")).to_have_count(0)
    expect(page.get_by_role("button", name="More for “by keyboard”")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(chat.answer).to_have_text("by keyboard")
    expect(chat.input).to_have_value("what?")  # what was typed there is still there


def test_the_focus_goes_on_from_what_it_was_used_on(chat: ChatPage):
    page = chat.page
    chat.ask("by keyboard")
    page.get_by_role("button", name="Answer again").press("Enter")
    expect(page.get_by_label("Version 2 of 2")).to_be_visible()
    expect(chat.input).to_be_focused()
    page.get_by_role("button", name="Earlier version").press("Enter")
    expect(page.get_by_label("Version 1 of 2")).to_be_visible()
    expect(page.get_by_role("button", name="Later version")).to_be_focused()
    page.get_by_role("button", name="Edit").press("Enter")
    page.keyboard.type(" again")
    page.keyboard.press("Enter")
    expect(chat.questions).to_have_text("by keyboard again")
    expect(chat.input).to_be_focused()
    chat.expect_status("completed")
    page.keyboard.press("Control+Shift+O")
    page.get_by_role("button", name="More for “by keyboard”").first.press("Enter")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Undo")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="More for “by keyboard”").first).to_be_visible()
    expect(chat.input).to_be_focused()


def test_what_is_written_from_right_to_left_stands_on_the_right(chat: ChatPage):
    """Not so its code."""
    chat.input.fill("שלום עולם")
    expect(chat.input).to_have_css("direction", "rtl")
    chat.ask("שלום `a(b)`:\n\n```\nx = f(1)\n```")
    for part in (chat.questions, chat.answer, chat.page.locator("#title"), chat.listed.first):
        expect(part).to_have_css("direction", "rtl")
    for code in chat.answer.locator("code, pre").all():
        expect(code).to_have_css("direction", "ltr")


def test_double_clicks(chat: ChatPage):
    """On "Send", where "Stop" comes next; and on what opens a dialog, where the second one lands beside it."""
    chat.input.fill("said once")
    chat.page.get_by_role("button", name="Send").dblclick()
    chat.expect_status("completed")
    expect(chat.questions).to_have_text("said once")
    chat.page.get_by_role("button", name="Settings").dblclick()
    expect(chat.page.get_by_role("dialog")).to_be_visible()
    chat.page.keyboard.press("Escape")
    expect(chat.page.get_by_role("dialog")).to_have_count(0)


def test_dark_light_and_chinese_stay_chosen(chat: ChatPage):
    page = chat.page
    expect(page.locator("body")).to_have_css("background-color", PAPER["light"])
    chat.input.fill("typed before")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Appearance").select_option("dark")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("body")).to_have_css("background-color", PAPER["dark"])
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Language").select_option("中文")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#welcome")).to_contain_text("想聊些什么")
    expect(page.locator("html")).to_have_attribute("lang", "zh")
    expect(page.locator("body")).to_have_css("background-color", PAPER["dark"])
    expect(page.get_by_label("消息", exact=True)).to_have_value("typed before")
    page.get_by_label("消息", exact=True).press("Enter")
    chat.expect_status("completed")
    expect(page.get_by_role("button", name="重新回答")).to_be_visible()
    # Every word of the page is one of the language's.
    english = page.evaluate(
        "import('./words.js').then(({ ENGLISH }) => { const words = new Set(Object.values(ENGLISH));"
        " const said = (e) => [e.getAttribute('aria-label'), e.placeholder, e.children.length ? '' : e.textContent];"
        " return [...document.querySelectorAll('body *')].flatMap(said).filter(s => words.has(s)); })"
    )
    assert english == []


def test_a_browser_in_chinese_is_spoken_to_in_chinese(fast_server: ServerProcess, browser: Browser):
    context = browser.new_context(locale="zh-CN")
    try:
        page = context.new_page()
        page.goto(fast_server.url)
        expect(page.get_by_label("消息", exact=True)).to_be_visible()
    finally:
        context.close()


def test_a_text_file_goes_along_and_other_files_are_refused(chat: ChatPage, tmp_path: Path):
    """In the message, folded; without a word of one's own it is to be summarised."""
    page = chat.page
    notes, picture, big = tmp_path / "notes.md", tmp_path / "picture.png", tmp_path / "big.txt"
    notes.write_text("# Notes\n\n```\ncode\n```\nthe end")
    picture.write_bytes(b"\x89PNG\x00\xff")
    big.write_text("x" * 800_000)
    for file, why in ((picture, "“picture.png” is not a text file."), (big, "“big.txt” is too long to attach")):
        page.locator("#file").set_input_files(file)
        expect(chat.problem).to_contain_text(why)
    page.locator("#file").set_input_files(notes)
    page.get_by_role("button", name="Remove notes.md").click()
    expect(page.locator("#files")).to_be_hidden()
    page.locator("#file").set_input_files(notes)
    page.get_by_role("button", name="Send").click()
    chat.expect_status("completed")
    for _ in range(2):
        expect(chat.questions).to_have_text("Summarise this.")
        expect(chat.answer).to_contain_text("the end")  # the model got all of it
        expect(page.locator("#title")).to_have_text("notes.md")
        attached = page.locator(".attached")
        expect(attached.locator("pre")).to_be_hidden()
        attached.get_by_text("notes.md").click()
        expect(attached.locator("pre")).to_have_text(notes.read_text())
        page.reload()
        chat.expect_status("completed")
    # An edited message keeps its file.
    page.locator(".message.user").hover()
    page.get_by_role("button", name="Edit").click()
    field = page.get_by_role("textbox", name="Edit the message")
    expect(field).to_have_value("Summarise this.")
    field.fill("Count the words.")
    field.press("Enter")
    chat.expect_status("completed")
    expect(chat.questions).to_have_text("Count the words.")
    expect(page.locator(".attached")).to_have_count(1)


def test_the_first_paint_is_small(fast_server: ServerProcess, browser: Browser):
    """Without what is loaded when the page is on screen. The figures are printed; bytes are judged, times are not."""
    context = browser.new_context()
    try:
        chat = ChatPage(context, fast_server.url)
        chat.until_markdown()
        page = chat.page
        page.wait_for_load_state("networkidle")
        entries = page.evaluate(
            "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
            ".map(({ name, transferSize }) => [new URL(name).pathname, transferSize])"
        )
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    finally:
        context.close()
    later = {
        "/dialogs.js",
        "/files.js",
        "/conversation-file.js",
        "/markdown.js",
        "/libraries/marked.js",
        "/libraries/purify.js",
        "/libraries/highlight.js",
    }
    first = {name: size for name, size in entries if name not in later}
    total, rest = sum(first.values()), sum(size for name, size in entries if name in later)
    print(f"first paint: {len(first)} requests, {total:,} bytes, after {paint} ms; afterwards {rest:,} bytes")
    assert 0 < total < FIRST_PAINT_BYTES
    assert "/words.zh.js" not in first


@pytest.mark.parametrize(
    ("name", "width", "height", "scheme"),
    [("page", 1280, 800, "light"), ("page-dark", 1280, 800, "dark"), ("page-phone", 390, 844, "light")],
)
def test_screenshot(
    fast_server: ServerProcess,
    browser: Browser,
    tmp_path: Path,
    *,
    name: str,
    width: int,
    height: int,
    scheme: Literal["light", "dark"],
):
    """README's pictures; the tracked files change only when asked, so that a test run leaves the tree clean."""
    folder = IMAGES if os.environ.get("TOKENWIRE_UPDATE_SCREENSHOTS") == "1" else tmp_path
    path = folder / f"{name}.png"
    touch = width < 500
    context: BrowserContext = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, has_touch=touch, is_mobile=touch
    )
    try:
        chat = ChatPage(context, fast_server.url)
        titles = ["Names for a lighthouse cat", "Quaternions, for a gardener", "What happens when I press Enter?"]
        for title in titles:
            chat.new()
            chat.ask(title)
        chat.ask(ANSWER)
        # As a person and a model would have said it: the echo engine only knows the question.
        for _ in range(2):
            chat.page.locator(".message").nth(1).evaluate("message => message.remove()")
        others = "[...document.querySelectorAll('#conversations li')].slice(3).forEach(row => row.remove())"
        chat.page.evaluate(others)
        expect(chat.answer.locator(".hljs-keyword").first).to_be_visible()
        chat.input.fill("And if the server restarts?")
        chat.page.mouse.move(width / 2, height / 2)
        chat.page.screenshot(path=path)
        assert path.read_bytes().startswith(b"\x89PNG")
    finally:
        context.close()
