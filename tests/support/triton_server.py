"""A real Triton server, from the wheel that PyTriton ships it in, with models that speak as its vLLM backend does."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
import venv
from pathlib import Path
from typing import Final

from tests.support.wheels import unpacked

WHEEL: Final = "nvidia-pytriton==0.7.0"
NUMPY: Final = (
    "numpy==1.26.4"  # what its stub is built for; with numpy 2 it reads every byte of a text as the first one
)
MODEL_CODE: Final = Path(__file__).with_name("triton_model.py")
START_S: Final = 60
POLL_S: Final = 0.05

_TENSOR = '{{ name: "{name}" data_type: {kind} dims: [ {dims} ]{more} }}'
_OPTIONAL = " optional: true"


def model_config(*, full: bool) -> str:
    """Return a config.pbtxt as the vLLM backend completes it. full: with what newer versions tell."""
    inputs = [("text_input", "TYPE_STRING", ""), ("stream", "TYPE_BOOL", _OPTIONAL)]
    inputs += [("sampling_parameters", "TYPE_STRING", _OPTIONAL), ("exclude_input_in_output", "TYPE_BOOL", _OPTIONAL)]
    outputs = [("text_output", "TYPE_STRING", "")]
    if full:
        inputs += [(f"return_{name}", "TYPE_BOOL", _OPTIONAL) for name in ("finish_reason", "num_output_tokens")]
        outputs += [("finish_reason", "TYPE_STRING", ""), ("num_output_tokens", "TYPE_UINT32", "")]
    lines = ['backend: "python"', "max_batch_size: 0", "model_transaction_policy { decoupled: true }"]
    lines += ["instance_group [ { kind: KIND_CPU count: 1 } ]"]
    lines += [_list("input", inputs, "1"), _list("output", outputs, "-1")]
    return "\n".join(lines)


def _list(name: str, tensors: list[tuple[str, str, str]], dims: str) -> str:
    rows = ", ".join(_TENSOR.format(name=tensor, kind=kind, dims=dims, more=more) for tensor, kind, more in tensors)
    return f"{name} [ {rows} ]"


class TritonServer:
    """One server, with explicit model control. Models: `chat`, `cold` (not loaded), `old` (tells less), `other`
    (another contract).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.repository = folder / "models"
        self.events = folder / "events"  # what the models have to say, one line each
        self.events.touch()
        self._add("chat", model_config(full=True))
        self._add("cold", model_config(full=True))
        self._add("old", model_config(full=False))
        self._add(
            "other",
            'backend: "python"\n'
            + _list("input", [("x", "TYPE_STRING", "")], "1")
            + _list("output", [("y", "TYPE_STRING", "")], "1"),
        )
        wheel = unpacked(WHEEL)
        triton = wheel / "pytriton" / "tritonserver"
        backends = folder / "backends"
        shutil.copytree(triton / "backends", backends)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = triton / "python_backend_stubs" / version / "triton_python_backend_stub"
        shutil.copy(stub, backends / "python")
        (backends / "python" / stub.name).chmod(0o755)
        # The stub heeds no PYTHONPATH, but the environment whose python3 comes first in PATH.
        venv.create(folder / "venv", with_pip=False)
        packages = next((folder / "venv").glob("lib/python*/site-packages"))
        (packages / "numpy.pth").write_text(str(unpacked(NUMPY)))
        binary = triton / "bin" / "tritonserver"
        binary.chmod(0o755)
        self.grpc_port, self._http_port = _free_port(), _free_port()
        self.address = f"127.0.0.1:{self.grpc_port}"
        command = [str(binary), "--model-repository", str(self.repository), "--backend-directory", str(backends)]
        command += ["--model-control-mode", "explicit", *(f"--load-model={name}" for name in ("chat", "old", "other"))]
        command += ["--grpc-address", "127.0.0.1", "--grpc-port", str(self.grpc_port), "--allow-metrics", "false"]
        command += ["--http-address", "127.0.0.1", "--http-port", str(self._http_port), "--exit-timeout-secs", "1"]
        libraries = [str(wheel / "nvidia_pytriton.libs"), sysconfig.get_config_var("LIBDIR")]
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(libraries),
            "PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}",
            "TRITON_TEST_EVENTS": str(self.events),
        }
        self.log = folder / "log"
        with self.log.open("wb") as log:
            # A group of its own: when it is killed, the processes of its Python models stay and must be ended, too.
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def _add(self, name: str, config: str) -> None:
        version = self.repository / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(config)
        shutil.copy(MODEL_CODE, version / "model.py")

    def wait_ready(self) -> None:
        """Return when it answers."""
        deadline = time.monotonic() + START_S
        while not self._answers():
            dead = self._process.poll() is not None
            if dead or time.monotonic() > deadline:
                self.stop()
                raise AssertionError("Triton did not start:\n" + self.log.read_text(errors="replace")[-3000:])
            time.sleep(POLL_S)

    def _answers(self) -> bool:
        url = f"http://127.0.0.1:{self._http_port}/v2/health/ready"
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                return reply.status == 200
        except OSError:
            return False

    def until_event(self, text: str, timeout_s: float = 20) -> None:
        """Return when a model has said it."""
        deadline = time.monotonic() + timeout_s
        while text not in self.events.read_text():
            assert time.monotonic() < deadline, f"no {text!r} in {self.events.read_text()!r}"
            time.sleep(POLL_S)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait()
        self._end_models()

    def stop(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._end_models()

    def _end_models(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
