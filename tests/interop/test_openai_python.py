"""The official `openai` package for Python: the documented snippet. More of it is in test_clients.py."""

from __future__ import annotations

import contextlib
import io

import pytest

from tests.support.server import ServerProcess

# As the SDK's users write it; only the URL and the model are the test's.
SNIPPET = """
from openai import OpenAI
client = OpenAI(api_key="k", base_url="http://localhost:8000/v1")
with client.responses.connect() as connection:
    connection.response.create(model="m", input="hi")
    for event in connection:
        if event.type == "response.output_text.delta": print(event.delta, end="")
        if event.type == "response.completed": break
"""
# The SDK calls websockets 17's connect() the older way; that is between the two of them.
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used as a context manager:DeprecationWarning")


def test_the_snippet(server: ServerProcess):
    """The documented snippet runs unchanged."""
    code = SNIPPET.replace("http://localhost:8000", server.url).replace('model="m"', 'model="echo"')
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "snippet", "exec"), {})  # noqa: S102 our own text, as a reader would run it
    assert out.getvalue() == "hi"
