"""Conversations: history, branches, commands, order between devices."""

from __future__ import annotations

import asyncio

from tests.integration.server.wire import TERMINAL, Answer, client
from tests.support.server import ServerProcess

LONG = " ".join(f"w{number}" for number in range(60))


async def test_history_reaches_the_model(server: ServerProcess):
    """Each turn of a conversation sees those before it, from any connection, and hits the prefix cache."""
    async with client(server) as c, client(server) as other:
        conversation = await c.conversation()
        first = await c.ask("a b c", conversation=conversation)
        second = await other.ask("d", conversation=conversation)
        third = await c.ask("e", conversation={"id": conversation})
        assert [answer.input_tokens for answer in (first, second, third)] == [3, 7, 9]
        assert second.response["usage"]["input_tokens_details"]["cached_tokens"] > 0
        assert await c.items(conversation) == [
            ("user", "a b c"), ("assistant", "a b c"), ("user", "d"), ("assistant", "d"),
            ("user", "e"), ("assistant", "e"),
        ]  # fmt: skip


async def test_first_items_are_history(server: ServerProcess):
    """A conversation may begin with items."""
    async with client(server) as c:
        conversation = await c.conversation(items=[{"role": "system", "content": "x y"}])
        assert (await c.ask("z", conversation=conversation)).input_tokens == 3


async def test_a_branch_replaces_what_followed(server: ServerProcess):
    """Conversation with previous_response_id goes on from there; the list shows the new branch."""
    async with client(server) as c:
        conversation = await c.conversation()
        first = await c.ask("one", conversation=conversation)
        await c.ask("wrong", conversation=conversation)
        edited = await c.ask("right", conversation=conversation, previous_response_id=first.id)
        assert edited.input_tokens == 3
        assert await c.items(conversation) == [
            ("user", "one"), ("assistant", "one"), ("user", "right"), ("assistant", "right")
        ]  # fmt: skip
        assert (await c.ask("next", conversation=conversation)).input_tokens == 5


async def test_a_branch_from_elsewhere_is_refused(server: ServerProcess):
    """A response of another conversation, of none, or that does not exist: 400, and no turn is made."""
    async with client(server) as c:
        here, there = await c.conversation(), await c.conversation()
        foreign = await c.ask("x", conversation=there)
        loose = await c.ask("x")
        for previous in (foreign.id, loose.id):
            error = await c.refused("response.create", input="y", conversation=here, previous_response_id=previous)
            assert (error["code"], error["param"]) == ("invalid_request", "previous_response_id")
        error = await c.refused("response.create", input="y", conversation=here, previous_response_id="resp_none")
        assert error["code"] == "previous_response_not_found"
        error = await c.refused("response.create", input="y", conversation="conv_none")
        assert (error["code"], error["param"]) == ("conversation_not_found", "conversation")
        assert await c.items(here) == []


async def test_the_commands(server: ServerProcess):
    """create, retrieve, update, list, delete: each answers with one event, with the command's id."""
    async with client(server) as c:
        made = await c.do("conversation.create", metadata={"title": "a"}, id="mk")
        conversation = made["conversation"]["id"]
        assert (made["type"], made["id"]) == ("conversation.created", "mk")
        assert (await c.do("conversation.create", id="mk"))["conversation"]["id"] == conversation
        got = await c.do("conversation.retrieve", conversation=conversation)
        assert got["type"] == "conversation.retrieved"
        assert got["conversation"]["metadata"] == {"title": "a"}
        updated = await c.do("conversation.update", conversation=conversation, metadata={"title": "b"})
        assert (updated["type"], updated["conversation"]["metadata"]) == ("conversation.updated", {"title": "b"})
        listed = await c.do("conversation.list", limit=1)
        assert (listed["type"], listed["data"][0]["id"]) == ("conversation.listed", conversation)
        answer = await c.ask("x", conversation=conversation)
        deleted = await c.do("conversation.delete", conversation=conversation, id="rm")
        assert (deleted["type"], deleted["id"]) == ("conversation.deleted", "rm")
        for command in ("retrieve", "delete", "items.list"):
            error = await c.refused(f"conversation.{command}", conversation=conversation)
            assert error["code"] == "conversation_not_found"
        assert (await c.refused("response.retrieve", response_id=answer.id))["code"] == "response_not_found"


async def test_lists_come_in_pages(server: ServerProcess):
    """After and limit walk through conversations and items without a gap or a repetition."""
    async with client(server) as c:
        made = [await c.conversation() for _ in range(5)]
        found: list[str] = []
        while len(found) < 5:
            page = await c.do("conversation.list", limit=2, after=found[-1] if found else None)
            found += [row["id"] for row in page["data"]]
            assert page["has_more"] or len(found) >= 5
        assert found[:5] == made[::-1]
        for number in range(3):
            await c.ask(f"n{number}", conversation=made[0])
        items: list[dict] = []
        while True:
            after = items[-1]["id"] if items else None
            page = await c.do("conversation.items.list", conversation=made[0], limit=2, after=after)
            items += page["data"]
            if not page["has_more"]:
                break
        assert [item["content"][0]["text"] for item in items] == ["n0", "n0", "n1", "n1", "n2", "n2"]


async def test_what_was_said_is_found(server: ServerProcess):
    """By words of one message or of the title, newest first, page by page; what is deleted or on no branch is not."""
    async with client(server) as c:
        made, turns = [], []
        for number in range(3):
            made.append(await c.conversation(metadata={"title": f"Nautical {number}"}))
            said = f"Where is the\n\nOLD lighthouse {number}? " + "More words. " * 50
            turns += [await c.ask(said, conversation=made[-1])]
        found = await c.do("conversation.search", query="Lighthouse old")
        assert [row["conversation"]["id"] for row in found["data"]] == made[::-1]
        assert found["has_more"] is False
        newest = found["data"][0]
        assert newest["item_id"] == (await c.do("conversation.items.list", conversation=made[2]))["data"][-1]["id"]
        assert newest["excerpt"].startswith("Where is the OLD lighthouse 2? More words.")
        titled = (await c.do("conversation.search", query="nautical 1"))["data"]
        assert [(row["conversation"]["id"], row["item_id"], row["excerpt"]) for row in titled] == [
            (made[1], None, "Nautical 1")
        ]
        assert (await c.do("conversation.search", query="nautical lighthouse"))["data"] == []  # not in one text
        page = await c.do("conversation.search", query="lighthouse", limit=2)
        assert ([row["conversation"]["id"] for row in page["data"]], page["last_id"]) == (made[:0:-1], made[1])
        assert page["has_more"] is True
        page = await c.do("conversation.search", query="lighthouse", limit=2, after=page["last_id"])
        assert [row["conversation"]["id"] for row in page["data"]] == made[:1]
        await c.ask("another branch", conversation=made[0])
        await c.ask("the shown branch", conversation=made[0], previous_response_id=turns[0].id)
        assert (await c.do("conversation.search", query="another branch"))["data"] == []
        for conversation in made:
            await c.do("conversation.delete", conversation=conversation)
        assert (await c.do("conversation.search", query="lighthouse"))["data"] == []
        error = await c.refused("conversation.search", query="lighthouse", after=made[0])
        assert error["code"] == "conversation_not_found"


async def test_deleting_ends_running_and_waiting_answers(slow: ServerProcess):
    """Every listener hears an end, from whatever connection the deletion came; nothing of it comes back."""
    async with client(slow) as c, client(slow) as other, client(slow) as third:
        for _ in range(5):
            conversation = await c.conversation()
            running = await c.begin(LONG, conversation=conversation)
            await other.create("waits", conversation=conversation)
            await other.until("response.created")
            await third.do("conversation.delete", conversation=conversation)
            assert (await c.answer()).type in TERMINAL
            assert (await other.answer(whole=False)).type in TERMINAL
            error = await c.refused("response.retrieve", response_id=running)
            assert error["code"] == "response_not_found"
    slow.until_metric("responses_running", 0)


async def test_two_devices_at_the_same_moment(slow: ServerProcess):
    """None is lost, each gets its own answer, one order everywhere; the second hears that it waits."""
    async with client(slow) as one, client(slow) as two:
        conversation = await one.conversation()
        for round_number in range(3):
            left, right = f"left {round_number}", f"right {round_number}"
            answers = await asyncio.gather(
                one.ask(left, conversation=conversation), two.ask(right, conversation=conversation)
            )
            assert [answer.text for answer in answers] == [left, right]
            sizes = sorted(answer.input_tokens for answer in answers)
            assert sizes == [8 * round_number + 2, 8 * round_number + 6]
        said = await one.items(conversation)
        assert said == await two.items(conversation)
        assert len(said) == 12
        assert [said[index][1] for index in range(0, 12, 2)] == [said[index][1] for index in range(1, 12, 2)]


async def test_a_waiting_turn_says_so(slow: ServerProcess):
    """response.queued with the reason and the position; then it runs with the history of the turn before."""
    async with client(slow) as one, client(slow) as two:
        conversation = await one.conversation()
        await one.begin(LONG, conversation=conversation)
        await two.create("after", conversation=conversation)
        created, queued = await two.until("response.queued")
        assert (created["response"]["status"], queued["response"]["status"]) == ("queued", "queued")
        assert queued["tokenwire"] == {"reason": "conversation", "position": 1}
        first = await one.answer()
        answer = Answer([created, queued, *(await two.until(*TERMINAL))]).check()
    assert first.text == LONG
    assert (answer.text, answer.input_tokens) == ("after", 121)


async def test_two_conversations_never_mix(slow: ServerProcess):
    """A new conversation while the old one streams; every event belongs to its own."""
    async with client(slow) as c:
        old, new = await c.conversation(), await c.conversation()
        await c.create(LONG, conversation=old, stream_id="old")
        await c.create("fresh words", conversation=new, stream_id="new")
        fresh, long = await c.answer("new"), await c.answer("old")
        for answer, conversation in ((fresh, new), (long, old)):
            seen = {event["response"]["conversation"]["id"] for event in answer.events if "response" in event}
            assert seen == {conversation}
            assert len({event["item_id"] for event in answer.events if "item_id" in event}) == 1
        assert (fresh.text, long.text) == ("fresh words", LONG)
        assert await c.items(new) == [("user", "fresh words"), ("assistant", "fresh words")]
