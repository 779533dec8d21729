"""How the tests are shared out when several run at once (`make test`)."""

from __future__ import annotations

import hypothesis
import pytest

# How long an example takes is the machine's business: a busy one must not fail a test.
hypothesis.settings.register_profile("tokenwire", deadline=None)
hypothesis.settings.load_profile("tokenwire")

VLLM = "vllm_"  # so begins the name of a fixture that uses the run's one vLLM


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a file's tests together, as they share its servers; and all that use the one vLLM, so that it stays one."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        group = "vllm" if any(name.startswith(VLLM) for name in names) else item.location[0]
        item.add_marker(pytest.mark.xdist_group(group))
