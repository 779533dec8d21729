"""What a running server tells whoever watches it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.integration.server.wire import client
from tests.support.collector import collecting
from tests.support.server import ServerProcess
from tests.unit.test_deploy import METRIC, QUERIES


async def test_a_watched_server(tmp_path: Path) -> None:
    """Every metric of the dashboard and the alerts is on its page; waits are told by class; a turn is a trace."""
    with collecting() as collector:
        config = f"[echo]\nrate = 500\n[tracing]\nendpoint = '{collector.endpoint}'\n"
        with ServerProcess(tmp_path / "data", config=config) as server:
            async with client(server) as c:
                turn = await c.ask("one two three four")
                await c.ask("one two three four", service_tier="flex")
                await c.refused("response.create", input="")
                page = server.get("/metrics")[1]
                for name in ("admission_wait", "queue_wait", "time_to_first_token"):
                    assert server.metric(f"{name}_seconds_count", **{"class": "interactive"}) == 1
                    assert server.metric(f"{name}_seconds_count", **{"class": "batch"}) == 1
            named = {name for query in QUERIES for name, _ in METRIC.findall(query)}
            assert named <= set(re.findall(r"^(\w+)[{ ]", page, re.MULTILINE))
        assert server.faults() == []
    roots = [span for span in collector.spans if span.name == "response"]
    assert len(roots) == 2
    told = [{pair.key: pair.value for pair in span.attributes} for span in roots]
    assert turn.id in {attributes["response"].string_value for attributes in told}
    assert {span.name for span in collector.spans} == {"response", "queue", "first token", "tokens"}
