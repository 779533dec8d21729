"""What can go wrong with models.

ModelsError
└── ModelSourceError   a model that is asked for cannot be found, fetched or converted
"""

from __future__ import annotations


class ModelsError(Exception):
    """Any fault of this package; its text is one line and says what to do."""


class ModelSourceError(ModelsError):
    """The model source names nothing usable, or it could not be fetched or converted."""
