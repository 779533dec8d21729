"""A sink for engines' chunks (server.engine.base.Sink)."""

from __future__ import annotations

from collections.abc import Callable

from server.engine.base import Chunk


class Taking:
    """Keeps all chunks. patience: times that tokens are left to wait before they are asked for."""

    def __init__(self, patience: int = 0) -> None:
        self.chunks: list[Chunk] = []
        self.waits = 0  # times that tokens were said to wait
        self._patience = patience
        self._hand_over: Callable[[], None] | None = None

    def receive(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)

    def wait(self, hand_over: Callable[[], None]) -> None:
        self._hand_over = hand_over
        self.waits = 0
        self.heard()

    def heard(self) -> None:
        self.waits += 1
        if self.waits > self._patience and self._hand_over is not None:
            hand_over, self._hand_over = self._hand_over, None
            hand_over()
