"""What fits the model's window: the newest whole turns, with room for an answer, or the numbers."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.items import FunctionCall, Message
from server.chat.context import Context, ContextRequest, fit
from tests.support.scripted import ScriptedEngine


def message(role: str, tokens: int) -> Message:
    """A message of that many tokens: the engine counts one more than it has characters."""
    return Message(role, "x" * (tokens - 1))  # type: ignore[arg-type]


def conversation(*tokens: int) -> list[Message]:
    """Alternating messages of so many tokens, a user's first."""
    return [message(("user", "assistant")[index % 2], count) for index, count in enumerate(tokens)]


def request(history, messages, **fields) -> ContextRequest:
    defaults = {"instructions": None, "max_output_tokens": None, "reserve": 1024, "may_trim": True}
    return ContextRequest(history=history, messages=messages, **(defaults | fields))


def fitted(window, request):
    return asyncio.run(fit(ScriptedEngine(context_length=window), request))


def refused(window, request) -> str:
    with pytest.raises(ProtocolError) as caught:
        fitted(window, request)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    return str(caught.value)


def test_all_of_it_fits():
    """Nothing is dropped, nothing is said; the answer may be as long as it was asked for, or as there is room."""
    turns = conversation(100, 100)
    for may_trim in (True, False):
        context = fitted(8192, request(turns, conversation(50), may_trim=may_trim))
        assert (context.prompt.token_count, context.max_tokens) == (250, 8192 - 250)
        assert (context.dropped_turns, context.notice) == (0, None)
        context = fitted(8192, request(turns, conversation(50), may_trim=may_trim, max_output_tokens=7))
        assert context.max_tokens == 7


def test_what_does_not_fit_and_may_not_be_trimmed():
    """A history of 8,264 tokens in a window of 8,192 is refused, with both numbers."""
    text = refused(8192, request(conversation(4000, 4254), conversation(10), may_trim=False))
    assert "8264 tokens" in text
    assert "8192" in text
    assert "truncation 'auto'" in text
    assert "-" not in text.replace("max_output", "")


def test_what_does_not_fit_and_may_be_trimmed():
    """The same, with `auto`: the oldest turn goes, and the client is told."""
    context = fitted(8192, request(conversation(2000, 2000, 2000, 2254), conversation(10)))
    assert context.dropped_turns == 1
    assert context.prompt.token_count == 2000 + 2254 + 10
    assert context.max_tokens == 8192 - context.prompt.token_count
    assert context.notice == {"context": {"dropped_turns": 1, "context_length": 8192}}


def test_a_wish_larger_than_the_window():
    """`auto` gives what there is room for, and keeps the history; `disabled` refuses, with the numbers."""
    turns, new = conversation(1000, 1000), conversation(10)
    context = fitted(8192, request(turns, new, max_output_tokens=1_000_000))
    assert (context.max_tokens, context.dropped_turns) == (8192 - 2010, 0)
    text = refused(8192, request(turns, new, max_output_tokens=1_000_000, may_trim=False))
    assert "2010 tokens" in text
    assert "1000000" in text
    assert "fewer max_output_tokens" in text


def test_new_messages_that_do_not_fit_alone():
    """Refused with their own number, whatever history there was."""
    for turns in ([], conversation(10, 10)):
        assert "8193 tokens" in refused(8192, request(turns, conversation(8193)))
    assert "8192 tokens" in refused(8192, request([], conversation(8192)))
    context = fitted(8192, request(conversation(10, 10), conversation(8191)))
    assert (context.max_tokens, context.dropped_turns) == (1, 1)


def test_instructions_stay():
    """They come first, and are never dropped."""
    context = fitted(100, request(conversation(30, 30, 30, 30), conversation(5), instructions="be brief", reserve=20))
    assert context.prompt.messages[0] == Message("system", "be brief")
    assert context.dropped_turns == 1


def test_as_few_as_possible():
    """One turn less dropped would not fit."""
    turns = conversation(*[10] * 40)
    context = fitted(100, request(turns, conversation(5), reserve=30))
    kept = len(context.prompt.messages) - 1
    assert context.prompt.token_count <= 70
    assert context.prompt.token_count + 20 > 70
    assert context.dropped_turns == (40 - kept) // 2


def test_a_small_window_is_not_all_kept_for_the_answer():
    """At most half of it is kept free, however much room answers get elsewhere."""
    context = fitted(100, request(conversation(20, 20), conversation(5), reserve=1024))
    assert context.dropped_turns == 0
    assert context.max_tokens == 55


def test_a_history_that_the_client_sends_itself():
    """Its oldest turns go like those that are kept here, after them; what comes before its first question stays."""
    rules, own = message("system", 10), conversation(30, 30, 30, 30, 5)
    context = fitted(100, request([], [rules, *own], reserve=20))
    assert context.dropped_turns == 1
    assert list(context.prompt.messages) == [rules, *own[2:]]
    context = fitted(100, request(conversation(20, 20), [rules, *own], reserve=20))
    assert context.dropped_turns == 2
    assert list(context.prompt.messages) == [rules, *own[2:]]
    context = fitted(100, request(conversation(20, 20), [rules, *conversation(5, 5, 5)], reserve=60))
    assert context.dropped_turns == 1
    assert "91 tokens" in (text := refused(90, request([], [*conversation(30, 30), message("user", 91)])))
    assert "truncation" not in text  # it was asked for


def test_turns_stay_whole():
    """Several messages of one side, as after a cancelled turn, go together; what is left begins with a user's."""
    turns = [message(role, 20) for role in ("user", "user", "assistant", "assistant", "user", "assistant")]
    context = fitted(100, request(turns, conversation(5), reserve=30))
    assert [m.role for m in context.prompt.messages] == ["user", "assistant", "user"]
    assert context.dropped_turns == 1


def test_a_call_stays_while_its_output_is_new():
    """Turns before it go; where that is not enough, the numbers are told."""
    call = Message("assistant", "x" * 9, calls=(FunctionCall("call_1", "look", "{}"),))
    output = Message("tool", "x" * 99, call_id="call_1")
    turns = [*conversation(500, 500), message("user", 300), call]
    context = fitted(1000, request(turns, [output]))
    assert (context.dropped_turns, context.prompt.token_count) == (1, 300 + 10 + 100)
    assert "410 tokens" in refused(400, request(turns, [output]))
    later = [*turns, output, *conversation(200, 200)]  # its output is old by now
    assert fitted(1000, request(later, conversation(10))).dropped_turns == 2


def test_bisection_costs_few_renderings():
    """A thousand turns do not cost a thousand tokenisations."""
    engine = ScriptedEngine(context_length=500)
    asyncio.run(fit(engine, request(conversation(*[10] * 2000), conversation(5))))
    assert len(engine.rendered) <= 14


SIZES = st.integers(1, 60)
ROLES = st.sampled_from(["user", "assistant", "system"])


@st.composite
def cases(draw) -> tuple[int, ContextRequest]:
    """A window and what is to fit it, near the edge."""
    asked = request(
        draw(st.lists(st.builds(message, ROLES, SIZES), max_size=12)),
        [message("user", size) for size in draw(st.lists(SIZES, min_size=1, max_size=3))],
        max_output_tokens=draw(st.none() | st.integers(1, 400)),
        reserve=draw(st.integers(1, 400)),
        may_trim=draw(st.booleans()),
        instructions=draw(st.none() | st.just("be brief")),
    )
    return draw(st.integers(16, 300)), asked


def count(asked: ContextRequest, *messages: Message) -> int:
    return sum(len(m.content) + 1 for m in messages) + (1 + len(asked.instructions) if asked.instructions else 0)


def attempt(window: int, asked: ContextRequest) -> Context | ProtocolError:
    try:
        return fitted(window, asked)
    except ProtocolError as error:
        return error


@settings(deadline=None)
@given(cases())
def test_the_result_fits(case):
    """Prompt and answer fit the window, no number is negative, the newest stays; or it is refused with the numbers."""
    window, asked = case
    context = attempt(window, asked)
    if isinstance(context, ProtocolError):
        assert context.code == "context_length_exceeded"
        assert "-" not in str(context).replace("max_output", "")
        total = count(asked, *asked.history, *asked.messages) + (asked.max_output_tokens or 1)
        assert count(asked, *asked.messages) >= window if asked.may_trim else total > window
        return
    assert 1 <= context.max_tokens <= (asked.max_output_tokens or window)
    assert 0 < context.prompt.token_count <= window - context.max_tokens
    assert context.dropped_turns >= 0
    assert (context.notice is None) == (context.dropped_turns == 0)
    said = [*asked.history, *asked.messages]
    kept = [m for m in context.prompt.messages if m != Message("system", "be brief")]
    assert kept == said[len(said) - len(kept) :]
    assert len(kept) >= len(asked.messages)
    assert kept == said or context.dropped_turns
    if context.dropped_turns and len(kept) > len(asked.messages):
        assert kept[0].role == "user"
