"""How the tests are shared out when several run at once (`make test`)."""

from __future__ import annotations

import hypothesis
import pytest

# How long an example takes is the machine's business: a busy one must not fail a test.
hypothesis.settings.register_profile("tokenwire", deadline=None)
hypothesis.settings.load_profile("tokenwire")

VLLM = "vllm_"  # so begins the name of a fixture that uses the run's one vLLM
# Minutes each, most of them for engines of their own. Begun first, they are not what a lone worker ends with.
LONGEST = (
    "test_vllm_process.py",
    "test_models_vllm.py",
    "test_kinds_of_model.py",
    "test_chaos_vllm.py",
    "test_chaos.py",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a file's tests together, as they share its servers; and all that use the one vLLM, so that it stays one."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group("vllm" if uses_the_vllm(item) else item.location[0]))
    if hasattr(config, "workerinput"):  # one of several workers; alone, the quick tests come first
        items.sort(key=lambda item: not (uses_the_vllm(item) or item.location[0].endswith(LONGEST)))


def uses_the_vllm(item: pytest.Item) -> bool:
    """Whether a test needs the vLLM that the run shares."""
    return any(name.startswith(VLLM) for name in getattr(item, "fixturenames", ()))
