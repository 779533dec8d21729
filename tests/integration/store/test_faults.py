"""Redis in trouble: bounded errors in our words, and recovery without a restart of ours."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket

import pytest
import redis

from server.config import LimitsConfig, StoreConfig
from server.store.base import JournalEntry, StoreUnavailableError
from server.store.redis import RedisStore

HANG_S = 20  # far over any bound that is asked for here


@pytest.fixture
async def frail(own_server, open_store, scene):
    """A store with short time-outs on a server that the test maltreats; conversation c, r1 running."""
    store = await open_store(own_server.url, operation_timeout_s=0.5)
    await store.create_conversation(scene.conversation(), [], None)
    await store.begin(scene.turn("r1"))
    await store.start("r1", 1)
    await store.append([JournalEntry("r1", 1, 0, b"zero")])
    return store


async def all_fail(store, scene, pattern: str) -> None:
    """Every kind of write ends in StoreUnavailableError, in bounded time."""
    async with asyncio.timeout(HANG_S):
        for write in (
            store.ping,
            lambda: store.begin(scene.turn("r2")),
            lambda: store.append([JournalEntry("r1", 1, 1, b"one")]),
            lambda: store.finish(scene.end("r1")),
            lambda: store.heartbeat("g1", 5),
        ):
            with pytest.raises(StoreUnavailableError, match=pattern):
                await write()


async def all_works(store, scene) -> None:
    """What was acknowledged is there, and the answer goes on to its end."""
    await store.ping()
    assert await store.append([JournalEntry("r1", 1, n, b"%d" % n) for n in range(1, 4)]) == frozenset()
    assert [n for n, _ in await store.read_events("r1", after=-1, count=9)] == [0, 1, 2, 3]
    await store.begin(scene.turn("r2"))
    assert await store.finish(scene.end("r1")) == "r2"
    assert (await store.get_conversation("ann", "c")).head == "r1"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_restart_in_the_middle_loses_nothing(own_server, frail, scene, number):
    """Down: clear errors. Back, scripts forgotten, connections dead: all works, all is there."""
    own_server.stop(number)
    await all_fail(frail, scene, "cannot be reached|did not answer")
    own_server.start()
    await all_works(frail, scene)


async def test_a_restart_between_two_operations_goes_unnoticed(own_server, frail, scene):
    """Dead connections in the pool and in the journal are replaced without an error."""
    own_server.stop()
    own_server.start()
    await all_works(frail, scene)


async def test_a_hung_server_is_an_error_in_time(own_server, frail, scene):
    """SIGSTOP: nothing waits longer than the operation's time; after SIGCONT all works."""
    own_server.send(signal.SIGSTOP)
    await all_fail(frail, scene, "did not answer")
    own_server.send(signal.SIGCONT)
    await all_works(frail, scene)


async def test_a_demoted_master_is_an_error_until_it_is_master_again(own_server, frail, scene):
    """READONLY after a failover: writes say so; as master again all works."""
    own_server.call("REPLICAOF", "127.0.0.1", "1")
    await all_fail(frail, scene, "read-only")
    own_server.call("REPLICAOF", "NO", "ONE")
    await all_works(frail, scene)


async def test_full_memory_is_an_error_until_there_is_room(own_server, frail, scene):
    """OOM: writes say so; with room again all works."""
    own_server.call("CONFIG", "SET", "maxmemory", "1")
    await all_fail(frail, scene, "memory")
    own_server.call("CONFIG", "SET", "maxmemory", "0")
    await all_works(frail, scene)


async def test_a_disk_that_takes_nothing_is_an_error_until_it_does(own_server, frail, scene):
    """MISCONF: writes say so; when the server can save again all works."""
    own_server.call("CONFIG", "SET", "save", "3600 1")
    (own_server.folder / "dump.rdb").mkdir()  # no snapshot can be renamed to that
    await saved(own_server, "err")
    await all_fail(frail, scene, "disk")
    (own_server.folder / "dump.rdb").rmdir()
    await saved(own_server, "ok")
    await all_works(frail, scene)


async def saved(own_server, status: str) -> None:
    """Let the server save, and return when it has come to this."""
    own_server.call("BGSAVE")
    async with asyncio.timeout(HANG_S):
        while own_server.call("INFO", "persistence")["rdb_last_bgsave_status"] != status:  # noqa: ASYNC110 it tells of no event
            await asyncio.sleep(0.01)


async def test_a_password_that_was_changed_is_an_error_until_it_is_back(own_server, frail, scene):
    """Connections that are open stay; new ones are refused, and say why."""
    own_server.call("CONFIG", "SET", "requirepass", "new")
    with redis.Redis(unix_socket_path=str(own_server.socket), password="new") as admin:
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await all_fail(frail, scene, "password")
        admin.execute_command("CONFIG", "SET", "requirepass", "")
    await all_works(frail, scene)


async def test_forgotten_scripts_are_loaded_again(own_server, frail, scene):
    """SCRIPT FLUSH between two operations goes unnoticed."""
    own_server.call("SCRIPT", "FLUSH")
    await all_works(frail, scene)


async def test_a_hundred_operations_queue_over_two_connections(own_server, open_store, scene):
    """More operations than connections: they wait for each other, none fails."""
    store = await open_store(own_server.url, max_connections=2)
    await asyncio.gather(*(store.create_conversation(scene.conversation(f"c{n}"), [], None) for n in range(100)))
    found = await asyncio.gather(*(store.get_conversation("ann", f"c{n}") for n in range(100)))
    assert [conversation.id for conversation in found] == [f"c{n}" for n in range(100)]
    assert len([line for line in own_server.call("CLIENT", "LIST").splitlines() if "tokenwire" in line]) <= 3


async def test_cancelled_operations_never_poison_the_pool(own_server, open_store, scene):
    """A hundred cancellations at every stage of an operation; then each operation still gets its own answer."""
    store = await open_store(own_server.url, max_connections=2)
    for number in range(20):
        await store.create_conversation(scene.conversation(f"c{number}"), [], None)
    for number in range(100):
        task = asyncio.create_task(store.get_conversation("ann", "c0"))
        for _ in range(number % 12):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    found = await asyncio.gather(*(store.get_conversation("ann", f"c{n}") for n in range(20)))
    assert [conversation.id for conversation in found] == [f"c{n}" for n in range(20)]


async def test_cancelled_appends_never_mix_up_replies(own_server, frail):
    """A hundred batches cancelled at every stage, each repeated: nothing twice, nothing lost, nothing refused."""
    for number in range(1, 101):
        batch = [JournalEntry("r1", 1, number, b"%d" % number), JournalEntry("gone", 1, number, b"")]
        task = asyncio.create_task(frail.append(batch))
        for _ in range(number % 12):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await frail.append(batch) == {"gone"}
    read = await frail.read_events("r1", after=0, count=999)
    assert read == [(n, b"%d" % n) for n in range(1, 101)]


async def test_a_cancelled_caller_gets_its_cancellation(own_server, frail, scene):
    """Cancelled while Redis hangs, an operation ends at once, as cancelled."""
    own_server.send(signal.SIGSTOP)
    for operation in (frail.get_conversation("ann", "c"), frail.append([JournalEntry("r1", 1, 1, b"one")])):
        task = asyncio.create_task(operation)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    own_server.send(signal.SIGCONT)
    await all_works(frail, scene)


async def test_an_append_cancelled_while_it_connects_is_cancelled(own_server, frail, scene):
    """At every step of a reconnection; the next append waits for the same attempt, or makes its own."""
    for steps in range(40):
        own_server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        task = asyncio.create_task(frail.append([JournalEntry("r1", 1, 1, b"1")]))
        for _ in range(steps):
            await asyncio.sleep(0)
        if not task.done():
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    await all_works(frail, scene)


async def test_close_ends_what_runs(own_server, frail):
    """An operation under way ends as unavailable, so does a later one; closing twice is harmless."""
    own_server.send(signal.SIGSTOP)
    task = asyncio.create_task(frail.get_conversation("ann", "c"))
    await asyncio.sleep(0)
    await frail.close()
    await frail.close()
    with pytest.raises(StoreUnavailableError):
        await task
    with pytest.raises(StoreUnavailableError, match="closed"):
        await frail.ping()
    with pytest.raises(StoreUnavailableError, match="closed"):
        await frail.append([JournalEntry("r1", 1, 1, b"one")])


async def test_tcp_with_password_and_database(own_server, open_store, scene):
    """Pool and journal sign in and select the database of the URL; a wrong password is one line without it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own_server.call("CONFIG", "SET", "port", port)
    own_server.call("CONFIG", "SET", "requirepass", "s3cret")
    store = await open_store(f"redis://:s3cret@127.0.0.1:{port}/3")
    await store.create_conversation(scene.conversation(), [], None)
    await store.begin(scene.turn("r1"))
    assert await store.append([JournalEntry("r1", 1, 0, b"zero")]) == frozenset()
    for wrong in (f"redis://:wr0ng@127.0.0.1:{port}/3", f"unix://{own_server.socket}?password=wr0ng", own_server.url):
        with pytest.raises(StoreUnavailableError) as refused:
            await open_store(wrong)
        assert "password" in str(refused.value) or "sign-in" in str(refused.value)
        assert "wr0ng" not in str(refused.value)
        assert "\n" not in str(refused.value)


async def test_an_evicting_server_is_reported(own_server, open_store, caplog):
    """Any maxmemory-policy but noeviction is a warning at connect: it would drop live conversations."""
    with caplog.at_level(logging.WARNING):
        await open_store(own_server.url)
        assert not caplog.records
        own_server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        await open_store(own_server.url)
    assert "allkeys-lru" in caplog.text


@pytest.mark.parametrize(
    "url",
    ["redis://ann:s3cret@127.0.0.1:1/0", "unix:///nowhere/socket?password=s3cret", "redis://no-such-host.invalid"],
)
async def test_nobody_there_is_one_line_that_says_what_to_do(url):
    """The text names the URL without its password, and the setting."""
    store = RedisStore(url, StoreConfig(operation_timeout_s=2), LimitsConfig())
    async with asyncio.timeout(HANG_S):
        with pytest.raises(StoreUnavailableError, match="redis_url") as failed:
            await store.connect()
    await store.close()
    assert "s3cret" not in str(failed.value)
    assert "\n" not in str(failed.value)


async def test_a_listener_that_never_answers_is_an_error_in_time():
    """Something else listens there and says nothing."""
    accepted: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        store = RedisStore(f"redis://127.0.0.1:{port}", StoreConfig(operation_timeout_s=0.3), LimitsConfig())
        async with asyncio.timeout(HANG_S):
            with pytest.raises(StoreUnavailableError, match=r"did not answer within 0\.3 s"):
                await store.connect()
        await store.close()
        for writer in accepted:
            writer.close()


async def test_a_listener_of_another_kind_is_an_error():
    """A web server in Redis's place is told apart, in one line."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as web:
        port = web.sockets[0].getsockname()[1]
        store = RedisStore(f"redis://127.0.0.1:{port}", StoreConfig(operation_timeout_s=2), LimitsConfig())
        with pytest.raises(StoreUnavailableError):
            await store.connect()
        await store.close()


async def test_much_to_ask_is_not_a_silent_server(own_server, open_store):
    """Answered slowly, one after the other: the last waits far longer than an operation may take, and is answered."""
    store = await open_store(own_server.url, operation_timeout_s=1, max_connections=2)
    stop = asyncio.Event()

    async def slow_down() -> None:
        while not stop.is_set():
            own_server.send(signal.SIGSTOP)
            await asyncio.sleep(0.05)
            own_server.send(signal.SIGCONT)
            await asyncio.sleep(0.001)

    slowly = asyncio.create_task(slow_down())
    started = asyncio.get_running_loop().time()
    found = await asyncio.gather(*(store.find_command("ann", "k") for _ in range(120)))
    took_s = asyncio.get_running_loop().time() - started
    stop.set()
    await slowly
    assert len(found) == 120
    assert took_s > 1, "it was too quick to show anything"
