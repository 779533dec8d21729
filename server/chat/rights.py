"""What of a command needs a right of its own."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from protocol.commands import ConversationCreate, ResponseCreate
from protocol.errors import ProtocolError, excerpt
from protocol.items import Message
from server.access.auth import Right, User
from server.config import Config


def check_turn(user: User, command: ResponseCreate) -> None:
    """Refuse words that stand above the user's where the sign-in may not say them. Raises ProtocolError."""
    if command.instructions is not None:
        user.require(Right.INSTRUCTIONS, param="instructions")
    _check_roles(user, command.messages, "input")


def check_conversation(user: User, command: ConversationCreate) -> None:
    """As `check_turn`, of the items that a conversation begins with."""
    _check_roles(user, command.messages, "items")


def may_use(user: User, model: str, config: Config) -> bool:
    """Whether a model is there for a user. model: its name in the configuration."""
    settings = config.models.get(model)
    return settings is None or not settings.requires or user.can(settings.requires)


def check_model(user: User, model: str, config: Config) -> None:
    """Refuse a model that is not there for the user as if it were there for nobody. Raises ProtocolError."""
    if may_use(user, model, config):
        return
    names = [name for name in config.models if may_use(user, name, config)]
    near = difflib.get_close_matches(model, names, n=3) or names[:5]
    text = f"there is no model '{excerpt(model, 100)}'; there is {', '.join(near) or 'none for you'}"
    raise ProtocolError("model_not_found", text, param="model")


def _check_roles(user: User, messages: Iterable[Message], param: str) -> None:
    if any(message.role == "system" for message in messages):
        user.require(Right.INSTRUCTIONS, param=param)
