"""Who a client is. For now everyone is the local user; keys and JWT come through the same two functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from protocol.errors import ProtocolError
from server.config import Config, is_loopback

PROTOCOL_SUBPROTOCOL: Final = "responses"
# Browsers cannot set headers on a WebSocket; OpenAI's JS SDK sends the key as a subprotocol instead.
CREDENTIAL_SUBPROTOCOL_PREFIX: Final = "openai-insecure-api-key."


class Right(StrEnum):
    """Rights that commands ask for. Models may ask for others of any name."""

    ADMIN = "admin"  # admin commands; who has it has every other right
    INSTRUCTIONS = "instructions"  # `instructions`, and items of the role `system`


@dataclass(frozen=True, slots=True)
class User:
    """An account, and what its sign-in may do.

    id: owner of conversations and responses; stable, and safe in Redis keys and logs.
    rights: members of `Right`, and names that the operator made up for models.
    """

    id: str
    rights: frozenset[str] = frozenset()

    def can(self, right: str) -> bool:
        """Whether it has a right. Other people's things are not among them, whatever the right."""
        return right in self.rights or Right.ADMIN in self.rights

    def require(self, right: str, *, param: str | None = None) -> None:
        """Raise ProtocolError `permission_denied` where it does not have a right. param: the field that needs it."""
        if not self.can(right):
            text = f"this needs the right '{right}', which your sign-in lacks; whoever runs the server can grant it"
            raise ProtocolError("permission_denied", text, param=param)


# Without sign-in everybody is the same user: on loopback the machine's own, elsewhere anyone who reaches the port.
LOCAL_USER: Final = User("local", frozenset({Right.ADMIN}))
ANYBODY: Final = User("local", frozenset({Right.INSTRUCTIONS}))


def authenticate_handshake(headers: Mapping[str, str], config: Config) -> User | None:  # noqa: ARG001 see below
    """Return who sends these request headers, or None where nobody signed in yet.

    The headers are for the sign-in modes that read `Authorization: Bearer …` or the credential subprotocol
    and raise ProtocolError `unauthorized` for a bad one; None then leaves it to the first frame
    (`session.update`). Without sign-in (`config` refuses that beyond loopback) everyone is the local user.
    """
    return LOCAL_USER if is_loopback(config.host) else ANYBODY


def select_subprotocol(offered: Sequence[str]) -> str | None:
    """Choose the subprotocol to echo; None when nothing was offered or only credentials were.

    Browsers, `ws` and wscat fail unless one that they offered comes back (RFC 6455 section 4.1); a credential
    is never repeated in a response.
    """
    if PROTOCOL_SUBPROTOCOL in offered:
        return PROTOCOL_SUBPROTOCOL
    return next((name for name in offered if not name.startswith(CREDENTIAL_SUBPROTOCOL_PREFIX)), None)
