"""One conversation on several screens: tabs, wscat, two gateways, and a gateway that is killed."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.e2e.browser import ChatPage
from tests.e2e.conftest import valkey
from tests.e2e.programs import program
from tests.e2e.proxied import network
from tests.support.server import ServerProcess

Open = Callable[[str], ChatPage]
RATE = ("--echo-rate", "40", "--echo-ttft", "20")  # 200 words take five seconds
PATIENCE_S = 30


def words(stem: str, count: int) -> str:
    return " ".join(f"{stem}{number}" for number in range(count))


def expect_growing(chat: ChatPage, stem: str, first: int, then: int) -> None:
    """Waits for a word and for a later one, both while the answer streams."""
    for number in (first, then):
        chat.wait_for_text(f"{stem}{number} ")
        chat.expect_status("streaming")


def expect_whole(chat: ChatPage, text: str, turns: int) -> None:
    """The last answer is complete, and nothing is there twice."""
    chat.expect_status("completed")
    assert chat.answer.text_content() == text
    expect(chat.questions).to_have_count(turns)
    expect(chat.answers).to_have_count(turns)


def texts(chat: ChatPage) -> list[str]:
    return chat.page.locator(".message .body").all_text_contents()


def quiet(*chats: ChatPage) -> None:
    """Forgets the browser's own report of cut sockets, which these tests cause."""
    for chat in chats:
        chat.problems[:] = [problem for problem in chat.problems if "WebSocket" not in problem]


class Wscat:
    """The wscat of the set-up: sends frames once it is connected, and keeps what comes."""

    def __init__(self, url: str, *frames: dict) -> None:
        commands = [part for frame in frames for part in ("-x", json.dumps(frame))]
        self.process = subprocess.Popen(
            [program("node"), program("wscat"), "--no-color", "-w", "-1", *commands, "-c", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.events: list[dict] = []
        self.noise: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            start = line.find("{")  # it writes its prompt before
            with self._changed:
                if start < 0:
                    self.noise.append(line)
                else:
                    self.events.append(json.loads(line[start:]))
                self._changed.notify_all()

    def wait_for(self, kind: str, count: int = 1) -> dict:
        """Returns the event that makes it so many of a type, when it has come."""
        with self._changed:
            found = self._changed.wait_for(lambda: len(self.all(kind)) >= count, PATIENCE_S)
            assert found, f"no {kind} came: {[event['type'] for event in self.events]} {self.noise}"
            return self.all(kind)[count - 1]

    def all(self, kind: str) -> list[dict]:
        return [event for event in self.events if event["type"] == kind]

    def text(self, item_id: str) -> str:
        deltas = self.all("response.output_text.delta")
        return "".join(event["delta"] for event in deltas if event["item_id"] == item_id)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.terminate()
        self.process.wait(10)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def wscat(server: ServerProcess, *frames: dict) -> Iterator[Wscat]:
    running = Wscat(f"{server.ws_url}/v1/responses", *frames)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("data"), *RATE).start()
    yield server
    assert server.stop() == 0, server.tail()
    assert server.faults() == []


def test_two_tabs_and_wscat_see_one_answer_grow_and_a_late_tab_has_it_all(server: ServerProcess, open_page: Open):
    one, two = open_page(server.url), open_page(server.url)
    one.ask("hello")
    two.page.goto(one.page.url)
    two.expect_status("completed")
    conversation = one.page.url.split("#")[1]
    said = words("cat", 400)
    subscribe = {"type": "conversation.subscribe", "conversation": conversation, "stream_id": "feed"}
    with wscat(server, subscribe, {"input": said, "conversation": conversation}) as cat:
        # wscat's turn: both tabs show the question and the growing answer.
        expect_growing(one, "cat", 5, 12)
        expect_growing(two, "cat", 20, 27)
        late = open_page(one.page.url)
        late.wait_for_text("^cat0 ")
        expect_growing(late, "cat", 40, 47)
        for chat in (one, two, late):
            expect_whole(chat, said, 2)
            expect(chat.questions.last).to_have_text(said)
        done = cat.wait_for("response.completed")
        assert cat.text(done["response"]["output"][0]["id"]) == said
        # A tab's turn: the others and wscat see it.
        answer = words("tab", 300)
        two.send(answer)
        expect_growing(one, "tab", 5, 12)
        for chat in (one, two, late):
            expect_whole(chat, answer, 3)
        done = cat.wait_for("response.completed", 2)
        assert done["stream_id"] == "feed"
        assert cat.text(done["response"]["output"][0]["id"]) == answer
        assert cat.all("error") == []


def test_turns_of_two_tabs_at_the_same_moment_are_in_one_order_everywhere(server: ServerProcess, open_page: Open):
    """Both are answered, and both tabs and the store tell them in the same order."""
    one, two = open_page(server.url), open_page(server.url)
    one.ask("hello")
    two.page.goto(one.page.url)
    two.expect_status("completed")
    left, right = words("left", 30), words("right", 30)
    for chat, text in ((one, left), (two, right)):
        chat.input.fill(text)
    one.enter()
    two.enter()
    for chat in (one, two):
        expect(chat.page.locator(".message.assistant[data-status=completed]")).to_have_count(3, timeout=30_000)
    assert sorted(texts(one)) == sorted(["hello", "hello", left, left, right, right])
    assert texts(one) == texts(two)
    two.page.reload()
    expect(two.answers).to_have_count(3)
    assert texts(two) == texts(one)


def test_a_message_sent_while_another_tab_is_answered_waits_its_turn(server: ServerProcess, open_page: Open):
    one, two = open_page(server.url), open_page(server.url)
    one.ask("hello")
    two.page.goto(one.page.url)
    two.expect_status("completed")
    first = words("first", 300)
    one.send(first)
    two.wait_for_text("first5 ")
    expect(two.stop_button).to_be_visible()
    two.input.fill("me next")
    two.page.get_by_role("button", name="Send").click()
    expect(two.answers.last).to_contain_text("Waiting")
    for chat in (one, two):
        expect_whole(chat, "me next", 3)
    assert texts(one) == texts(two) == ["hello", "hello", first, first, "me next", "me next"]


def test_an_answer_can_be_stopped_from_another_tab(server: ServerProcess, open_page: Open):
    one, two = open_page(server.url), open_page(server.url)
    one.ask("hello")
    two.page.goto(one.page.url)
    two.expect_status("completed")
    one.send(words("long", 300))
    two.wait_for_text("long5 ")
    two.stop_button.click()
    for chat in (one, two):
        chat.expect_status("stopped")
    assert texts(one) == texts(two)
    assert two.ask("and on") == "and on"
    expect_whole(one, "and on", 3)


def test_a_conversation_renamed_or_deleted_elsewhere_changes_in_place(server: ServerProcess, open_page: Open):
    one, two = open_page(server.url), open_page(server.url)
    one.ask("to be renamed")
    two.page.goto(one.page.url)
    two.expect_status("completed")
    rename = {"type": "conversation.update", "conversation": one.page.url.split("#")[1], "metadata": {"title": "Anew"}}
    with wscat(server, rename) as cat:
        cat.wait_for("conversation.updated")
    for chat in (one, two):
        expect(chat.page.locator("#title")).to_have_text("Anew")
        expect(chat.listed.first).to_have_text("Anew")
    one.choose("Anew", "Delete")
    one.page.reload()  # what was not taken back until then is done
    expect(two.page.locator("#notice")).to_contain_text("not here")
    expect(two.listed.filter(has_text="Anew")).to_have_count(0)
    expect(two.questions).to_have_count(0)
    two.new()
    assert two.ask("something else") == "something else"


def test_nothing_of_one_conversation_shows_in_another(server: ServerProcess, open_page: Open):
    """A second tab makes the noise."""
    one, two = open_page(server.url), open_page(server.url)
    one.ask("here")
    two.page.goto(one.page.url)
    two.expect_status("completed")
    noise = words("noise", 500)
    two.send(noise)
    one.wait_for_text("noise3 ")
    one.new()
    assert one.ask("quiet please") == "quiet please"
    assert texts(one) == ["quiet please", "quiet please"]
    one.reopen("here")
    expect_growing(one, "noise", 50, 55)
    expect_whole(one, noise, 2)


def test_offline_for_ten_seconds_in_the_middle_of_an_answer(
    server: ServerProcess, context: BrowserContext, open_page: Open
):
    """Nothing tells the page that its packets are lost. It is typed and sent meanwhile; each is answered once."""
    with network(server) as line:
        chat = open_page(line.url)
        said = words("long", 420)
        chat.send(said)
        chat.wait_for_text("long9 ")
        line.stall()
        context.set_offline(True)
        since = time.monotonic()
        chat.input.fill("typed on the train")
        first = chat.page.url
        chat.new()
        chat.send("sent on the train")
        expect(chat.questions).to_have_text("sent on the train")
        expect(chat.banner).to_contain_text("You are offline. What you type is kept.", timeout=9_000)
        chat.page.wait_for_timeout(max(0, 10 - (time.monotonic() - since)) * 1000)
        line.resume()
        context.set_offline(False)
        expect_whole(chat, "sent on the train", 1)
        expect(chat.banner).to_be_hidden()
        chat.listed.filter(has_text="long0").click()
        expect(chat.input).to_have_value("typed on the train")
        assert chat.page.url == first
        expect_whole(chat, said, 1)
        chat.page.reload()
        expect_whole(chat, said, 1)
        assert chat.ask("typed on the train") == "typed on the train"
        expect(chat.listed.filter(has_text="on the train")).to_have_count(1)
        chat.problems.clear()  # the browser itself reports what it could not reach


def test_two_tabs_lose_their_connections_twice_the_second_time_near_the_end(server: ServerProcess, open_page: Open):
    """Each has one complete copy, and what was typed meanwhile."""
    with network(server) as line:
        one, two = open_page(line.url), open_page(line.url)
        one.ask("hello")
        two.page.goto(one.page.url)
        two.expect_status("completed")
        said = words("word", 100)
        one.send(said)
        for number in (20, 90):
            for chat in (one, two):
                chat.wait_for_text(f"word{number} ")
                chat.input.fill(f"typed at {number}")
            line.cut()
        for chat in (one, two):
            expect_whole(chat, said, 2)
            expect(chat.input).to_have_value("typed at 90")
            expect(chat.banner).to_be_hidden()
        quiet(one, two)


def test_a_message_edited_elsewhere_during_a_lost_connection(server: ServerProcess, open_page: Open):
    """The old branch is gone when the connection is back; what was seen whole does not come again with the next one."""
    with network(server) as line:
        away, here = open_page(line.url), open_page(server.url)
        away.ask("hello")
        here.page.goto(f"{server.url}/#{away.page.url.split('#')[1]}")
        here.expect_status("completed")
        line.stall()
        here.input.press("ArrowUp")
        field = here.page.get_by_role("textbox", name="Edit the message")
        field.fill("changed")
        field.press("Enter")
        expect_whole(here, "changed", 1)
        line.cut()
        line.resume()
        expect(away.questions).to_have_text("changed")
        expect_whole(away, "changed", 1)
        for turns, said in ((2, "and on"), (3, "and on again")):
            here.ask(said)
            away.wait_for_text(f"^{said}$")
            expect_whole(away, said, turns)
            line.cut()
        quiet(away)


def test_a_turn_elsewhere_during_a_lost_connection_is_there_afterwards(tmp_path: Path, open_page: Open):
    """Both what ran on and what began and ended meanwhile."""
    with valkey() as redis_url:
        a = ServerProcess(tmp_path / "a", *RATE, "--redis-url", redis_url, "--drain-timeout", "0").start()
        b = ServerProcess(tmp_path / "b", *RATE, "--redis-url", redis_url).start()
        with a, b:
            on_a, on_b = open_page(a.url), open_page(b.url)
            on_a.ask("hello")
            on_b.page.goto(f"{b.url}/#{on_a.page.url.split('#')[1]}")
            on_b.expect_status("completed")
            first, second = words("first", 100), words("second", 20)
            on_b.send(first)
            on_a.wait_for_text("first5 ")
            port = a.port
            assert a.stop() == 0, a.tail()
            expect_whole(on_b, first, 2)
            assert on_b.ask(second) == second
            a.start(port)
            expect(on_a.banner).to_be_hidden(timeout=20_000)
            expect(on_a.answers).to_have_count(3)
            expect_whole(on_a, second, 3)
            assert texts(on_a) == texts(on_b)
            quiet(on_a)


def test_an_answer_outlives_its_killed_gateway_on_every_screen(tmp_path: Path, open_page: Open):
    """It streams there as here, also for a tab that a load balancer moves.

    Then kill -9, for the tabs on the other gateway and the one whose gateway comes back.
    """
    with valkey() as redis_url:
        a = ServerProcess(tmp_path / "a", *RATE, "--redis-url", redis_url).start()
        b = ServerProcess(tmp_path / "b", *RATE, "--redis-url", redis_url).start()
        with a, b, network(a) as line:
            on_a, on_b, moving = open_page(a.url), open_page(b.url), open_page(line.url)
            on_a.ask("hello")
            conversation = on_a.page.url.split("#")[1]
            address = f"{b.url}/#{conversation}"
            for chat, url in ((on_b, address), (moving, f"{line.url}#{conversation}")):
                chat.page.goto(url)
                chat.expect_status("completed")
            said = words("word", 400)
            moving.send(said)
            expect_growing(on_b, "word", 5, 12)  # answered on A, shown by B
            moving.input.fill("typed on the way")
            line.lead_to(b)
            line.cut()
            expect_growing(moving, "word", 30, 35)  # now shown by B, too
            port = a.port
            a.kill()
            late = open_page(address)
            late.wait_for_text("^word0 ")
            expect_growing(on_b, "word", 120, 125)  # gone on with by B
            a.start(port)
            for chat in (on_a, on_b, moving, late):
                expect_whole(chat, said, 2)
            expect(moving.input).to_have_value("typed on the way")
            expect(on_a.banner).to_be_hidden()
            quiet(on_a, moving)
            on_a.page.reload()
            expect_whole(on_a, said, 2)
            assert b.faults() == []


def test_an_answer_outlives_its_only_gateway(tmp_path: Path, open_page: Open):
    """Kill -9 mid-answer, then a new process on the same port and store."""
    with valkey() as redis_url:
        server = ServerProcess(tmp_path, *RATE, "--redis-url", redis_url).start()
        with server:
            sender, watcher = open_page(server.url), open_page(server.url)
            sender.ask("hello")
            watcher.page.goto(sender.page.url)
            watcher.expect_status("completed")
            said = words("word", 250)
            sender.send(said)
            watcher.wait_for_text("word12 ")
            port = server.port
            server.kill()
            expect(watcher.banner).to_be_visible()
            server.start(port)
            for chat in (sender, watcher):
                expect_whole(chat, said, 2)
            assert sender.ask("next") == "next"
            expect_whole(watcher, "next", 3)
            quiet(sender, watcher)
