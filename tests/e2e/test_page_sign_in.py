"""Signing in to the page, against a real server that wants it."""

import time
from collections.abc import Callable, Iterator

import jwt
import pytest
from playwright.sync_api import Browser, Route, expect

from tests.e2e.browser import FORBIDDEN, ChatPage
from tests.support.server import ServerProcess

SECRET = "a secret of more than thirty-two characters"
CONFIG = f"""
[auth]
methods = ["jwt"]
recheck_s = 0.1
[auth.jwt]
secret = "{SECRET}"
leeway_s = 0
"""


def token(user: str, seconds: float = 600) -> str:
    return jwt.encode({"sub": user, "exp": time.time() + seconds}, SECRET, algorithm="HS256")


@pytest.fixture(scope="module")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("keyed"), "--echo-rate", "200", config=CONFIG).start()
    yield server
    assert server.stop() == 0, server.tail()


@pytest.fixture
def open_keyed(keyed_server: ServerProcess, browser: Browser) -> Iterator[Callable[..., ChatPage]]:
    """Opens tabs of one browser, without looking at its console: refused sockets are reported there."""
    context = browser.new_context()

    def open_one(held: list[Route] | None = None) -> ChatPage:
        """held: takes the first request for the page's dialogs, which wait until it is continued."""
        if held is not None:
            context.route("**/dialogs.js", lambda route: held.append(route), times=1)  # noqa: PLW0108 Playwright wants a function
        return ChatPage(context, keyed_server.url)

    yield open_one
    context.close()


def give(chat: ChatPage, key: str, *, stays: bool = False) -> None:
    """Fills in the dialog and sends it; does not wait for what the server says of the key."""
    chat.page.get_by_label("API key").fill(key)
    chat.page.get_by_label("Stay signed in").set_checked(stays)
    chat.page.get_by_role("button", name="Sign in").click()


def sign_in(chat: ChatPage, key: str, *, stays: bool = False) -> None:
    """Gives a key that the browser keeps, and waits for the page that begins anew with it."""
    with chat.page.expect_navigation():
        give(chat, key, stays=stays)
    expect(chat.page.get_by_role("dialog")).to_have_count(0)


def test_a_key_is_asked_for_checked_and_forgotten(open_keyed: Callable[..., ChatPage]):
    held: list[Route] = []
    chat = open_keyed(held)
    chat.input.fill("typed before")
    while not held:
        chat.page.wait_for_timeout(10)
    held[0].continue_()
    expect(chat.page.get_by_role("dialog")).to_be_visible()
    chat.page.keyboard.press("Escape")  # there is no way around it
    expect(chat.page.get_by_role("dialog")).to_be_visible()
    give(chat, "wrong")
    expect(chat.page.get_by_role("alert").filter(has_text="does not accept")).to_be_visible()
    sign_in(chat, token("ann"))
    expect(chat.input).to_have_value("typed before")
    chat.enter()
    chat.expect_status("completed")
    expect(chat.answer).to_have_text("typed before")
    chat.page.reload()  # this tab stays signed in
    chat.expect_status("completed")
    other = open_keyed()
    expect(other.page.get_by_role("dialog")).to_be_visible()  # another tab does not
    sign_in(other, token("ann"), stays=True)
    expect(other.listed).to_have_text(["typed before"])
    assert token("ann").split(".", maxsplit=1)[0] not in other.page.url
    # Signing out in the middle of an answer forgets the key, and nothing of the account is left on screen, in any tab
    # that had that key; one that has its own stays.
    third = open_keyed()
    expect(third.listed).to_have_text(["typed before"])
    other.send("word " * 400)
    other.wait_for_text("word word")
    other.page.get_by_role("button", name="Settings").click()
    other.page.get_by_role("button", name="Sign out").click()
    for tab in (other, third):
        expect(tab.page.get_by_role("dialog")).to_be_visible()
        expect(tab.listed).to_have_count(0)
        expect(tab.answers).to_have_count(0)
    chat.page.reload()
    chat.expect_status("completed")
    assert other.page.evaluate("Object.keys(localStorage).filter(name => name.includes('key'))") == []
    # Somebody else sees their own conversations only.
    sign_in(other, token("bob"))
    expect(other.page.locator("#list-note")).to_have_text("Nothing here yet.")


def test_signing_in_where_the_browser_keeps_nothing(keyed_server: ServerProcess, browser: Browser):
    context = browser.new_context()
    try:
        context.add_init_script(FORBIDDEN)
        chat = ChatPage(context, keyed_server.url)
        give(chat, token("dora", -1))
        expect(chat.page.get_by_role("alert").filter(has_text="does not accept")).to_be_visible()
        give(chat, token("dora"))
        expect(chat.page.get_by_role("dialog")).to_have_count(0)
        assert chat.ask("hello") == "hello"
    finally:
        context.close()


def test_a_key_whose_time_is_up_is_asked_for_again_and_nothing_is_lost(open_keyed: Callable[..., ChatPage]):
    chat = open_keyed()
    sign_in(chat, token("cleo", 25))  # a busy machine needs some of them for the first turn
    chat.ask("said in time")
    chat.input.fill("typed later")
    expect(chat.page.get_by_role("dialog")).to_be_visible(timeout=60_000)
    sign_in(chat, token("cleo"))
    expect(chat.input).to_have_value("typed later")
    expect(chat.answer).to_have_text("said in time")
    assert chat.ask("typed later") == "typed later"
