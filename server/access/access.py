"""Who is there, and how much they may do."""

from __future__ import annotations

from dataclasses import dataclass

from server.access.limits import Limits
from server.access.sign_in import SignIn
from server.config import Config


@dataclass(frozen=True, slots=True)
class Access:
    """What the layers above need of this one."""

    sign_in: SignIn
    limits: Limits

    @classmethod
    def without_store(cls, config: Config) -> Access:
        """For gateways whose settings ask for neither API keys nor quotas."""
        return cls(SignIn(config), Limits(config.quotas))
