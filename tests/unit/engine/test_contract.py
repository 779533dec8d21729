"""The echo engine keeps the contract of all engines."""

from __future__ import annotations

import pytest

from server.engine.echo import EchoEngine
from tests.unit.engine.contract import EngineContract


class TestEcho(EngineContract):
    """The shared suite."""

    QUESTION = "one two three four five six seven eight nine ten"
    OTHER = "eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf"

    @pytest.fixture
    def engine(self) -> EchoEngine:
        return EchoEngine("echo", rate=500.0, ttft_ms=1.0)
