"""Use cases that need no second gateway: what a silent store does to them."""

from __future__ import annotations

import pytest

from protocol.commands import ConversationCreate
from protocol.errors import ProtocolError


async def test_a_plain_text_conversation_without_a_store(a, store):
    """The first line of a connection makes its conversation: the fault is one that the client is told."""
    store.is_away = True
    with pytest.raises(ProtocolError) as caught:
        await a.chat.new_conversation(a.client.user, ConversationCreate())
    assert caught.value.code == "store_unavailable"
    assert caught.value.retry_after_ms
    store.is_away = False
