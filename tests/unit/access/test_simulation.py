"""Admission on seeded traces and a simulated engine, beside first come first served: `make simulate` shows the same."""

from __future__ import annotations

import pytest

from tests.benchmarks.simulate_admission import compare


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_it_is_better_than_first_come_first_served(seed):
    """Chats beside documents begin sooner, a quiet user beside a flood within two turns' time; nothing is lost."""
    for name, (ours, fifo) in (await compare(seed)).items():
        assert ours.first_p99 < fifo.first_p99 / 2, name
        assert ours.service_times < 2, name
        assert ours.others_end < fifo.others_end * 1.6, name
