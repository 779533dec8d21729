"""Who a client is. For now everyone is the local user; keys and JWT come through the same two functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from server.config import Config

PROTOCOL_SUBPROTOCOL: Final = "responses"
# Browsers cannot set headers on a WebSocket; OpenAI's JS SDK sends the key as a subprotocol instead.
CREDENTIAL_SUBPROTOCOL_PREFIX: Final = "openai-insecure-api-key."


@dataclass(frozen=True, slots=True)
class User:
    """An account. id: owner of conversations and responses; stable, and safe in Redis keys and logs."""

    id: str


LOCAL_USER: Final = User("local")


def authenticate_handshake(headers: Mapping[str, str], config: Config) -> User | None:  # noqa: ARG001 see below
    """Return who sends these request headers, or None where nobody signed in yet.

    Both arguments are for the sign-in modes that read `Authorization: Bearer …` or the credential subprotocol
    and raise ProtocolError `unauthorized` for a bad one; None then leaves it to the first frame
    (`session.update`). Without sign-in (`config` refuses that beyond loopback) everyone is the local user.
    """
    return LOCAL_USER


def select_subprotocol(offered: Sequence[str]) -> str | None:
    """Choose the subprotocol to echo; None when nothing was offered or only credentials were.

    Browsers, `ws` and wscat fail unless one that they offered comes back (RFC 6455 section 4.1); a credential
    is never repeated in a response.
    """
    if PROTOCOL_SUBPROTOCOL in offered:
        return PROTOCOL_SUBPROTOCOL
    return next((name for name in offered if not name.startswith(CREDENTIAL_SUBPROTOCOL_PREFIX)), None)
