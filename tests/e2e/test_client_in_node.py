"""web/client.js on its own, in Node, against the real server."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, ServerProcess


def test_client_in_node(server: ServerProcess):
    node = shutil.which("node", path=os.pathsep.join([os.environ.get("PATH", ""), str(ROOT / ".venv/bin")]))
    if node is None:
        pytest.skip("node is not installed")
    script = Path(__file__).parent / "client_in_node.mjs"
    url = server.url.replace("http", "ws", 1) + "v1/responses"
    # Node 20 has a WebSocket behind this flag; later ones take the flag and have it anyway.
    command = [node, "--experimental-websocket", "--no-warnings", str(script), url]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
