"""The chat page in a real Chromium, as a person would use it."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request, expect, sync_playwright

# No GPU, no sandbox (tests often run as root in a container), and no traffic of the browser's own.
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Makes a page believe that its browser forbids storage.
FORBIDDEN = """for (const kind of ["localStorage", "sessionStorage"]) Object.defineProperty(window, kind, {
  get() { throw new DOMException("forbidden", "SecurityError"); } })"""
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's Chromium, or Playwright's own where the system has none."""
    path = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_ARGS)
        try:
            yield browser
        finally:
            browser.close()


class ChatPage:
    """One tab. `problems` gathers console errors, page errors and requests that left for other hosts."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.page: Page = context.new_page()
        self.problems: list[str] = []
        self.origin = url.split("#", maxsplit=1)[0].rstrip("/") + "/"
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", self._on_request)
        self.page.goto(url)
        expect(self.input).to_be_visible()

    def _on_console(self, entry: ConsoleMessage) -> None:
        if entry.type == "error":
            self.problems.append(entry.text)

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(self.origin):
            self.problems.append(request.url)

    # ── parts ──

    @property
    def input(self) -> Locator:
        return self.page.get_by_label("Message", exact=True)

    @property
    def questions(self) -> Locator:
        return self.page.locator(".message.user .body")

    @property
    def answers(self) -> Locator:
        return self.page.locator(".message.assistant")

    @property
    def answer(self) -> Locator:
        """The last answer's text."""
        return self.answers.last.locator(".body")

    @property
    def stop_button(self) -> Locator:
        return self.page.get_by_role("button", name="Stop the answer")

    @property
    def listed(self) -> Locator:
        return self.page.locator("#conversations a")

    @property
    def problem(self) -> Locator:
        return self.page.locator("#problem")

    @property
    def banner(self) -> Locator:
        return self.page.locator("#banner")

    # ── deeds ──

    def send(self, text: str) -> None:
        """Types a message and presses Enter; does not wait for the answer."""
        self.input.fill(text)
        self.enter()

    def enter(self) -> None:
        """Sends what is in the text field, as soon as it can be: nothing goes out while a conversation is loaded."""
        expect(self.page.locator("#send")).to_be_enabled()
        self.input.press("Enter")

    def ask(self, text: str) -> str:
        """Sends, and returns the whole answer."""
        before = self.answers.count()
        self.send(text)
        expect(self.answers).to_have_count(before + 1)
        expect(self.answers.last).to_have_attribute("data-status", "completed", timeout=30_000)
        return self.answer.text_content() or ""

    def choose(self, title: str, item: str) -> None:
        """Chooses from the menu of a listed conversation."""
        self.page.get_by_role("button", name=f"More for “{title}”").click()
        self.page.get_by_role("menuitem", name=item).click()

    def copied(self) -> str:
        """Copies the last answer and returns what is on the clipboard; the context must have been granted that."""
        tools = self.answers.last.locator(".tools")
        tools.get_by_role("button", name="Copy").click()
        expect(tools.locator("path[d='M5 13l4 4L19 7']")).to_have_count(1)
        return self.page.evaluate("navigator.clipboard.readText()")

    def until_markdown(self) -> None:
        """Waits for what is loaded when the page is on screen. Not `wait_for_function`: that needs eval."""
        expect(self.page.locator("html")).to_have_attribute("data-markdown", "ready", timeout=30_000)

    def new(self) -> None:
        self.page.get_by_role("button", name="New conversation").first.click()
        expect(self.questions).to_have_count(0)

    def reopen(self, title: str) -> None:
        self.listed.filter(has_text=title).click()
        expect(self.page.locator("#title")).to_have_text(title)

    def expect_status(self, status: str) -> None:
        """Waits until the last answer has got there."""
        expect(self.answers.last).to_have_attribute("data-status", status, timeout=30_000)

    def wait_for_text(self, pattern: str) -> None:
        """Waits until the last answer's text matches."""
        expect(self.answer).to_have_text(re.compile(pattern), timeout=30_000)
