"""How the tests are shared out when several run at once (`make test`)."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

# How long an example takes is the machine's business: a busy one must not fail a test.
hypothesis.settings.register_profile("tokenwire", deadline=None)
hypothesis.settings.load_profile("tokenwire")

ROOT: Final = Path(__file__).resolve().parents[1]
OF_THE_ONE_VLLM: Final = re.compile(r"\bvllm_(engine|server|seeing)\b")  # fixtures that live as long as the run
# Minutes each, most of them for engines of their own. Begun first, they are not what a lone worker ends with.
LONGEST: Final = (
    "test_vllm_process.py",
    "test_models_vllm.py",
    "test_kinds_of_model.py",
    "test_chaos_vllm.py",
    "test_chaos.py",
)


class Sharing(LoadScopeScheduling):  # type: ignore[misc]  # without types
    """Keeps a file's tests together, as they share its servers; and all that use the one vLLM, so that it stays one.

    Not xdist's own groups: version 3.8 marks them in a place where pytest 9.2 does not look.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "vllm" if uses_the_vllm(file) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Sharing:
    return Sharing(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest where several workers run; alone, the quick tests come first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not is_long(item.nodeid.partition("::")[0]))


def is_long(file: str) -> bool:
    return file.endswith(LONGEST) or uses_the_vllm(file)


@cache
def uses_the_vllm(file: str) -> bool:
    """Whether a file's tests need the vLLM that the run shares."""
    return OF_THE_ONE_VLLM.search((ROOT / file).read_text("utf-8")) is not None
