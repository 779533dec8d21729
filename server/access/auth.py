"""Who a client is: an account, its rights, and where its credential stands in a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import quote

from protocol.errors import ProtocolError

PROTOCOL_SUBPROTOCOL: Final = "responses"
# Browsers cannot set headers on a WebSocket; OpenAI's JS SDK sends the key as a subprotocol instead.
CREDENTIAL_SUBPROTOCOL_PREFIX: Final = "openai-insecure-api-key."
PLAIN_IN_ACCOUNTS: Final = "@:|+=,"  # besides letters, digits and _.-~; identity providers use these in names


class Right(StrEnum):
    """Rights that commands and routes ask for. Models may ask for others of any name."""

    ADMIN = "admin"  # admin commands; who has it has every other right
    INSTRUCTIONS = "instructions"  # `instructions`, and items of the role `system`
    METRICS = "metrics"  # GET /metrics, where people have to sign in
    GRAMMARS = "grammars"  # `text.format` of the type `tokenwire:grammar`: an ambiguous one stops the engine for all


@dataclass(frozen=True, slots=True)
class User:
    """An account, and what its sign-in may do.

    id: owner of conversations and responses; stable, and safe in Redis keys and logs.
    rights: members of `Right`, and names that the operator made up for models.
    key: the API key's id, where it signed in with one. expires_at: Unix time; None for a sign-in without an end.
    limits: the key's own, or those that a token puts in the place of `quotas.user`.
    """

    id: str
    rights: frozenset[str] = frozenset()
    key: str | None = None
    expires_at: float | None = None
    limits: tuple[tuple[str, int], ...] = ()

    @property
    def tenant(self) -> str:
        return tenant_of(self.id)

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
ANYBODY: Final = User("local", frozenset({Right.INSTRUCTIONS, Right.METRICS}))


def account_id(name: str, tenant: str = "") -> str:
    """Return the owner's id of a user of a tenant. No two pairs of names have the same one."""
    user = quote(name, safe=PLAIN_IN_ACCOUNTS)
    return f"{quote(tenant, safe=PLAIN_IN_ACCOUNTS)}/{user}" if tenant else user


def tenant_of(account: str) -> str:
    """Return the tenant in an owner's id, as it stands there; empty where there is none."""
    return account.partition("/")[0] if "/" in account else ""


def credential_of(headers: Mapping[str, str]) -> str | None:
    """Return the key or token that a request brings, or None.

    Never from the URL: URLs end up in logs and histories. `Basic` and other schemes are a proxy's, not ours.

    headers: by lower-case name.
    """
    scheme, _, value = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    for name in headers.get("sec-websocket-protocol", "").split(","):
        credential = name.strip().removeprefix(CREDENTIAL_SUBPROTOCOL_PREFIX)
        if credential and credential != name.strip():
            return credential
    return None


def select_subprotocol(offered: Sequence[str]) -> str | None:
    """Choose the subprotocol to echo; None when nothing was offered or only credentials were.

    Browsers, `ws` and wscat fail unless one that they offered comes back (RFC 6455 section 4.1); a credential
    is never repeated in a response.
    """
    if PROTOCOL_SUBPROTOCOL in offered:
        return PROTOCOL_SUBPROTOCOL
    return next((name for name in offered if not name.startswith(CREDENTIAL_SUBPROTOCOL_PREFIX)), None)


def unauthorized(what: str) -> ProtocolError:
    """Return the error of a sign-in that is missing or wrong. what: the reason, never the credential."""
    return ProtocolError("unauthorized", what)
