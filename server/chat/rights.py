"""What of a command needs a right of its own."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.commands import ConversationCreate, ResponseCreate
from protocol.items import Message
from server.access.auth import Right, User
from server.models.model import Model


def check_turn(user: User, command: ResponseCreate) -> None:
    """Refuse what the sign-in may not ask for, such as words that stand above the user's. Raises ProtocolError."""
    if command.instructions is not None:
        user.require(Right.INSTRUCTIONS, param="instructions")
    if command.options.format is not None and command.options.format.type == "tokenwire:grammar":
        # How long a grammar takes for each token cannot be told from its text, and all answers wait for it.
        user.require(Right.GRAMMARS, param="text.format.type")
    _check_roles(user, command.messages, "input")


def check_conversation(user: User, command: ConversationCreate) -> None:
    """As `check_turn`, of the items that a conversation begins with."""
    _check_roles(user, command.messages, "items")


def may_use(user: User, model: Model) -> bool:
    """Whether a model is there for a user; where not, it is as if it were there for nobody."""
    return not model.requires or user.can(model.requires)


def _check_roles(user: User, messages: Iterable[Message], param: str) -> None:
    if any(message.role == "system" for message in messages):
        user.require(Right.INSTRUCTIONS, param=param)
