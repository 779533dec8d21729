"""The private Valkey: starts, persists, is alone in its directory, ends with us whatever happens."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path

import pytest
import redis

from server.config import LimitsConfig, StoreConfig
from server.store import embedded
from server.store.embedded import DataDirInUseError, EmbeddedValkey, ValkeyStartError
from server.store.redis import RedisStore

HANG_S = 20
DISK_MS = 20_000  # for a write to be on the disk
PARENT = """
import asyncio, sys, uvloop
from pathlib import Path
from server.store.embedded import EmbeddedValkey
async def main():
    valkey = EmbeddedValkey(Path(sys.argv[1]))
    await valkey.start()
    print(valkey.pid, flush=True)
    await valkey.wait()
{run}(main())
"""


@pytest.fixture
async def valkey(tmp_path):
    server = EmbeddedValkey(tmp_path)
    yield server
    await server.stop()


def call(url: str, *arguments: object) -> object:
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return client.execute_command(*arguments)


async def test_it_serves_a_store_and_keeps_its_data(valkey, scene):
    """Stop and start: the conversation is there."""
    url = await valkey.start()
    store = RedisStore(url, StoreConfig(), LimitsConfig())
    await store.create_conversation(scene.conversation(), [], None)
    await valkey.stop()
    assert await valkey.start() == url
    assert (await store.get_conversation("ann", "c")).id == "c"
    await store.close()


async def test_it_is_private(valkey, tmp_path):
    """No TCP port; folder and socket are its owner's alone; Ctrl-C in our terminal does not reach it."""
    url = await valkey.start()
    assert call(url, "CONFIG", "GET", "port") == {"port": "0"}
    assert stat.S_IMODE((tmp_path / "valkey").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "valkey" / "socket").stat().st_mode) == 0o700
    assert os.getsid(valkey.pid) == valkey.pid
    assert call(url, "CONFIG", "GET", "maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    assert call(url, "CONFIG", "GET", "appendfsync") == {"appendfsync": "everysec"}


async def test_starting_and_stopping_twice_is_harmless(valkey):
    """A second start keeps the process; a second stop, and one before any start, do nothing."""
    await valkey.stop()
    url, pid = await valkey.start(), valkey.pid
    assert (await valkey.start(), valkey.pid) == (url, pid)
    await valkey.stop()
    await valkey.stop()
    assert valkey.pid is None


async def test_a_second_server_on_the_directory_is_refused(valkey, tmp_path):
    """It is told which process has it; the first is not disturbed; after its end the directory is free."""
    url = await valkey.start()
    second = EmbeddedValkey(tmp_path)
    with pytest.raises(DataDirInUseError, match=f"process {os.getpid()}"):
        await second.start()
    assert call(url, "PING")
    await valkey.stop()
    await second.start()
    await second.stop()


async def test_an_unexpected_end_is_noticed_and_can_be_mended(valkey):
    """wait() returns with the signal; start() brings it back under the same URL, with its data."""
    url = await valkey.start()
    call(url, "SET", "key", "value")
    call(url, "WAITAOF", 1, 0, DISK_MS)
    os.kill(valkey.pid, signal.SIGKILL)
    async with asyncio.timeout(HANG_S):
        assert await valkey.wait() == -signal.SIGKILL
    assert await valkey.start() == url
    assert call(url, "GET", "key") == "value"


@pytest.mark.parametrize("run", ["asyncio.run", "uvloop.run"])
async def test_it_dies_with_a_killed_parent(tmp_path, valkey, run):
    """SIGKILL to the server: Valkey ends by itself, and the next server takes over its directory and stale files."""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT.format(run=run), str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    url = f"unix://{tmp_path}/valkey/socket"
    call(url, "SET", "key", "value")
    call(url, "WAITAOF", 1, 0, DISK_MS)
    parent.kill()
    await parent.wait()
    async with asyncio.timeout(HANG_S):
        url = await valkey.start()
    assert valkey.pid != pid
    assert call(url, "GET", "key") == "value"


async def test_a_torn_log_loads(valkey, tmp_path):
    """The machine stopped in the middle of a write: all but the torn command is there."""
    url = await valkey.start()
    call(url, "SET", "key", "value")
    await valkey.stop()
    (log,) = (tmp_path / "valkey" / "appendonlydir").glob("*.incr.aof")
    with log.open("ab") as torn:
        torn.write(b"*3\r\n$3\r\nSET\r\n$3\r\nke")
    url = await valkey.start()
    assert call(url, "GET", "key") == "value"


async def test_a_long_path_still_gets_a_socket(tmp_path):
    """Socket paths end at 107 bytes: a deeper data directory gets a short private folder, gone after the stop."""
    deep = tmp_path / ("d" * 100)
    valkey = EmbeddedValkey(deep)
    url = await valkey.start()
    folder = Path(url.removeprefix("unix://")).parent
    assert call(url, "PING")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (deep / "valkey" / "appendonlydir").is_dir()
    await valkey.stop()
    assert not folder.exists()


async def test_a_path_with_odd_characters_is_quoted(tmp_path):
    """Spaces, percent and question marks in the data directory reach Valkey and the URL unharmed."""
    valkey = EmbeddedValkey(tmp_path / "my data%20?x#y")
    url = await valkey.start()
    store = RedisStore(url, StoreConfig(), LimitsConfig())
    await store.connect()
    await store.close()
    await valkey.stop()


async def test_a_hung_valkey_is_killed_at_the_stop(valkey, monkeypatch):
    """SIGTERM does not reach a stopped process: after a bound comes SIGKILL."""
    monkeypatch.setattr(embedded, "STOP_TIMEOUT_S", 0.1)
    await valkey.start()
    pid = valkey.pid
    os.kill(pid, signal.SIGSTOP)
    async with asyncio.timeout(HANG_S):
        await valkey.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_failed_start_shows_valkeys_own_words(valkey, tmp_path):
    """Damaged data: the error holds the end of Valkey's log, nothing runs, the directory is free again."""
    await valkey.start()
    await valkey.stop()
    (manifest,) = (tmp_path / "valkey" / "appendonlydir").glob("*.manifest")
    manifest.write_text("damaged\n")
    with pytest.raises(ValkeyStartError, match=r"(?s)ended with status 1.*manifest"):
        await valkey.start()
    assert valkey.pid is None
    with pytest.raises(ValkeyStartError):
        await EmbeddedValkey(tmp_path).start()


async def test_a_data_directory_that_cannot_be_one_is_a_clear_error(tmp_path):
    """A file in its place."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ValkeyStartError, match="file"):
        await EmbeddedValkey(tmp_path / "file").start()


async def test_no_server_at_all_is_one_clear_line(valkey, monkeypatch):
    """Neither the package nor PATH has one: the text says what to install or set."""
    monkeypatch.setattr(embedded, "_candidates", lambda: iter(["/nowhere/valkey-server"]))
    with pytest.raises(ValkeyStartError, match="redis_url"):
        await valkey.start()


async def test_the_server_on_path_serves_where_the_package_has_none(valkey, monkeypatch):
    """redis-server 7 from PATH starts with the same arguments."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    url = await valkey.start()
    assert call(url, "PING")


async def test_a_cancelled_start_leaves_nothing(valkey, tmp_path):
    """Cancelled at any point, it ends Valkey and frees the directory."""
    for steps in range(0, 60, 4):
        task = asyncio.create_task(valkey.start())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert valkey.pid is None or not task.cancelled()
        await valkey.stop()
    await EmbeddedValkey(tmp_path).stop()
    await valkey.start()
