"""web/client.js on its own, in Node, against the real server."""

import subprocess
from pathlib import Path

from tests.e2e.programs import program
from tests.support.server import ServerProcess


def test_client_in_node(server: ServerProcess):
    script = Path(__file__).parent / "client_in_node.mjs"
    # Node 20 has a WebSocket behind this flag; later ones take the flag and have it anyway.
    flags = ["--experimental-websocket", "--no-warnings"]
    command = [program("node"), *flags, str(script), f"{server.ws_url}/v1/responses"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
