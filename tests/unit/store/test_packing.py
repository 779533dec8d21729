"""What goes over the wire, and the files that it is made of."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.items import Item
from server.store import records
from server.store.base import JournalEntry
from server.store.client import script_source
from server.store.data_lock import DirectoryLock
from server.store.embedded import valkey_arguments
from server.store.journal_writer import packed_events

SCRIPTS = sorted(file.name for file in (resources.files("server.store") / "scripts").iterdir())


entries = st.builds(JournalEntry, st.text(), st.integers(1), st.integers(0), st.binary())


@given(prefix=st.text(), events=st.lists(entries))
def test_packed_events_are_the_commands_hiredis_packs(prefix, events):
    """Any key, any bytes: the same RESP as a library's, byte for byte; and the replies are the ids."""
    try:
        "".join([prefix, *(event.response_id for event in events)]).encode()
    except UnicodeEncodeError:
        return
    pack: Any = hiredis.pack_command  # annotated for tuples of one
    ids = [f"{event.epoch}-{event.sequence_number}" for event in events]
    expected = [
        pack(("XADD", prefix + event.response_id, "NOMKSTREAM", entry_id, "e", event.data))
        for event, entry_id in zip(events, ids, strict=True)
    ]
    packed, replies = packed_events(prefix, events)
    assert packed == b"".join(expected)
    reader = hiredis.Reader()
    reader.feed(replies)
    assert [reader.gets() for _ in ids] == [entry_id.encode() for entry_id in ids]
    assert reader.gets() is False


items = st.builds(
    Item,
    id=st.text(),
    role=st.sampled_from(["system", "user", "assistant"]),
    text=st.text(),
    status=st.sampled_from(["completed", "incomplete"]),
    response_id=st.none() | st.text(),
)


@given(st.lists(st.lists(items)))
def test_items_come_back_as_they_were(lists):
    """Several stored lists are read as one."""
    decoded = records.decode_items([records.encode_items(part) for part in lists])
    assert decoded == tuple(item for part in lists for item in part)


def test_every_script_is_used_and_every_used_one_is_there():
    """No script without a caller, no caller without a script."""
    source = "".join(path.read_text() for path in Path(records.__file__).parent.glob("*.py"))
    named = set(re.findall(r'\.run\(\s*"(\w+)"', source))
    assert sorted({f"{name}.lua" for name in named | {"common", "run"}}) == SCRIPTS


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "common.lua"])
def test_scripts_say_their_arguments(name):
    """common.lua comes first; the script's first line names what it takes."""
    assert "rguments" in (resources.files("server.store") / "scripts" / name).read_text("utf-8").splitlines()[0]
    assert script_source(name.removesuffix(".lua")).startswith("-- Put before every script.")


def test_the_private_valkey_has_no_port_and_never_evicts():
    """The arguments that safety hangs on."""
    line = " ".join(valkey_arguments(Path("/data"), Path("/data/socket")))
    for option in ("--port 0", "--appendonly yes", "--maxmemory-policy noeviction", "--unixsocketperm 700"):
        assert option in line


async def test_a_lock_of_a_dead_process_is_taken_over(tmp_path):
    """A lock file that nobody holds is only a file, whatever is in it; releasing twice is harmless."""
    (tmp_path / "lock").write_text("rubbish")
    lock = DirectoryLock(tmp_path / "lock")
    descriptor = await lock.take()
    assert await lock.take() == descriptor
    lock.release()
    lock.release()
