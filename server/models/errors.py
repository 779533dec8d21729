"""What can go wrong with models.

ModelsError
├── ModelSourceError   a model that is asked for cannot be found, fetched or converted
├── UnknownModelError  there is no model of that name
├── RegistryError      a model cannot be added, renamed or removed like that
└── ModelUnavailableError  it cannot be used now
    ├── ModelFailedError   its engine could not be started
    └── NoRoomError        there is no memory for it, now or ever
"""

from __future__ import annotations


class ModelsError(Exception):
    """Any fault of this package; its text is one line and says what to do."""


class ModelSourceError(ModelsError):
    """The model source names nothing usable, or it could not be fetched or converted."""


class UnknownModelError(ModelsError):
    """No model of that name; the text names the nearest ones."""


class RegistryError(ModelsError):
    """The registry would contradict itself: a name twice, an alias of nothing, the default removed."""


class ModelUnavailableError(ModelsError):
    """The model cannot answer. retry_after_s: when trying again may help; None where waiting does not."""

    def __init__(self, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class ModelFailedError(ModelUnavailableError):
    """The model's engine could not be started."""


class NoRoomError(ModelUnavailableError):
    """No device has room for the model, or none had in time."""
