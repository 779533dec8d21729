"""What a response says while nothing happens, and how long it goes on for nobody; on a clock of the test's own."""

from __future__ import annotations

import asyncio
import json

import pytest

from protocol.events import Usage, Waiting
from protocol.response_stream import ResponseHead, ResponseStream
from server.chat.patience import Patience


class Timer:
    def __init__(self, when, call):
        self.when, self.call, self.is_cancelled = when, call, False

    def cancel(self):
        self.is_cancelled = True


class Clock:
    """The part of an event loop that Patience uses; `sleep` runs what is due, in order."""

    def __init__(self):
        self.now = 1000.0
        self.timers = []

    def time(self):
        return self.now

    def call_later(self, delay, call):
        self.timers.append(Timer(self.now + delay, call))
        return self.timers[-1]

    def pending(self):
        return [timer for timer in self.timers if not timer.is_cancelled]

    def sleep(self, seconds):
        end = self.now + seconds
        while due := [timer for timer in self.pending() if timer.when <= end]:
            timer = min(due, key=lambda timer: timer.when)
            self.timers.remove(timer)
            self.now = timer.when
            timer.call()
        self.now = end


class Scene:
    """A response that was just created. said: type and time of each event that a timer made."""

    def __init__(self, clock):
        self.clock = clock
        self.stream = ResponseStream(ResponseHead("resp_1", "msg_1", "m", 1))
        self.stream.create(waiting=True)
        self.stream.take()
        self.said = []
        self.cancelled_at = []
        self.patience = Patience(self.stream, notify=self.notify, cancel=self.cancel, repeat_s=15, grace_s=120)

    def notify(self):
        for event in self.stream.take():
            self.said.append((json.loads(event.data), self.clock.now - 1000))
        self.patience.heard()  # as the response does when its events were published

    def cancel(self):
        self.cancelled_at.append(self.clock.now - 1000)

    @property
    def times(self):
        return [when for _, when in self.said]


@pytest.fixture
def scaled():
    """Nothing to scale: the clock is the test's."""


@pytest.fixture
def scene(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    return Scene(clock)


def test_the_first_reason_is_told_at_once_and_changes_at_a_pace(scene):
    """Ten changes in a second are two notices, the second with the newest of them."""
    for position in range(10, 0, -1):
        scene.patience.say(Waiting("admission", position=position))
        scene.clock.sleep(0.05)
    scene.clock.sleep(5)
    assert [event["tokenwire"]["position"] for event, _ in scene.said] == [10, 1]
    assert scene.times == [0, 1]


def test_the_same_reason_is_told_once(scene):
    """Saying it again changes nothing."""
    for _ in range(5):
        scene.patience.say(Waiting("conversation", position=1))
        scene.clock.sleep(1)
    assert len(scene.said) == 1


def test_a_wait_is_repeated(scene):
    """Every 15 s, for as long as it takes, from the last notice on."""
    scene.patience.watch()
    scene.clock.sleep(4)
    scene.patience.say(Waiting("conversation", position=2))
    scene.clock.sleep(6)
    scene.patience.say(Waiting("conversation", position=1))
    scene.clock.sleep(31)
    assert scene.times == [4, 10, 25, 40]
    assert {event["type"] for event, _ in scene.said} == {"response.queued"}


def test_before_a_reason_is_known_nothing_is_said(scene):
    """A turn that waits for the store alone has nothing to tell."""
    scene.patience.watch()
    scene.clock.sleep(40)
    assert scene.said == []


def test_a_long_prompt_does_not_look_like_a_dead_line(scene):
    """While it runs and nothing comes, `response.in_progress` is repeated every 15 s, the first one included."""
    scene.patience.watch()
    scene.stream.start()
    scene.notify()
    scene.clock.sleep(46)
    assert [event["type"] for event, _ in scene.said] == ["response.in_progress"] * 4
    assert scene.times == [0, 15, 30, 45]


def test_text_makes_a_keep_alive_needless(scene):
    """Silence counts from the last text on; it never lasts longer than 15 s."""
    scene.patience.watch()
    scene.stream.start()
    for _ in range(10):
        scene.clock.sleep(2.9)
        scene.stream.push("x")
        scene.notify()
    said = len(scene.said)
    assert "response.in_progress" not in [event["type"] for event, when in scene.said if when > 2.9]
    scene.clock.sleep(16)
    assert len(scene.said) == said + 1
    assert scene.times[-1] == pytest.approx(29 + 15)


def test_a_notice_that_is_due_when_the_wait_ends_is_not_told(scene):
    """It runs: the change that waited for its pace is old."""
    scene.patience.say(Waiting("admission", position=2))
    scene.patience.say(Waiting("admission", position=1))
    scene.stream.start()
    scene.clock.sleep(0.5)
    scene.stream.take()
    scene.stream.complete(Usage())
    scene.clock.sleep(100)
    assert [event["type"] for event, _ in scene.said if "queued" in event["type"]] == ["response.queued"]


def test_an_orphan_is_cancelled_after_its_grace(scene):
    """The countdown begins when the last listener leaves, and ends when one comes."""
    scene.patience.audience_changed(2)
    scene.clock.sleep(500)
    scene.patience.audience_changed(0)
    scene.clock.sleep(119)
    scene.patience.audience_changed(1)
    scene.clock.sleep(500)
    assert scene.cancelled_at == []
    scene.patience.audience_changed(0)
    scene.clock.sleep(500)
    assert scene.cancelled_at == [500 + 119 + 500 + 120]


def test_listeners_on_another_gateway_count(scene):
    """As long as it says so the response goes on; the grace counts from its last word."""
    scene.patience.audience_changed(0)
    for _ in range(300):
        scene.clock.sleep(2)
        scene.patience.followed()
    assert scene.cancelled_at == []
    scene.clock.sleep(121)
    assert scene.cancelled_at == [720]


def test_a_follower_does_not_start_a_countdown_for_listeners_here(scene):
    """With a listener of its own there is none."""
    scene.patience.audience_changed(1)
    scene.patience.followed()
    scene.clock.sleep(1000)
    assert scene.cancelled_at == []


def test_closing_stops_every_timer_for_good(scene):
    """What is said or left afterwards starts none; closing twice is harmless."""
    scene.patience.watch()
    scene.patience.say(Waiting("admission", position=2))
    scene.patience.audience_changed(0)
    scene.patience.close()
    scene.patience.close()
    assert scene.clock.pending() == []
    scene.patience.audience_changed(0)
    scene.patience.say(Waiting("admission", position=1))
    assert scene.clock.pending() == []
    scene.clock.sleep(1000)
    assert scene.cancelled_at == []
