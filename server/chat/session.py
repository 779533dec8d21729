"""What a sign-in looks like to its client."""

from __future__ import annotations

from typing import Any

from server.access.auth import User


def wire_session(user: User) -> dict[str, Any]:
    """Return the session object. user: the account's id. expires_at: Unix time, or null."""
    return {
        "user": user.id,
        "tenant": user.tenant or None,
        "rights": sorted(user.rights),
        "expires_at": None if user.expires_at is None else int(user.expires_at),
    }
