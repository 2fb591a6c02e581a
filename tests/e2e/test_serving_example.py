"""The example of a server: it answers all requests of many clients, and the daemon counts the same requests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from neurontools.model import ServedModel
from tests.harness.ports import free_port
from tests.harness.running_daemon import StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/serve.py"
PACKAGES = ROOT / ".venv/serving"
NEURON_RUN = Path(sys.executable).with_name("neuron-run")
REQUESTS, CLIENTS = 640, 32

pytest.importorskip("torch")
if not (PACKAGES / "uvicorn").is_dir():
    pytest.skip("starlette and uvicorn are not installed; run make serving", allow_module_level=True)


@pytest.mark.slow
def test_the_server_of_the_example_answers_every_request_in_batches_on_four_cores(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--interval", "0.05")
    port = free_port()
    environment = {
        **os.environ,
        "PYTHONPATH": str(PACKAGES),
        "NEURONTOOLS_SOCKET": daemon.socket,
        "NEURON_COMPILE_CACHE_URL": str(tmp_path),
    }
    command = [str(NEURON_RUN), "--cores", "0-3", str(EXAMPLE), "serve", "--port", str(port)]
    with ExitStack() as processes:
        server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        processes.callback(server.communicate)
        processes.callback(server.kill)
        assert wait_until(lambda: status(port, [1.0, 2.0])) == 400
        load = [
            sys.executable,
            str(EXAMPLE),
            "load",
            f"--port={port}",
            f"--requests={REQUESTS}",
            f"--clients={CLIENTS}",
        ]
        sent = subprocess.run(load, capture_output=True, text=True, timeout=HANG_SECONDS, check=True)
        found = json.loads(sent.stdout)
        assert (found["answered"], found["failed"]) == (REQUESTS, 0)
        assert found["mean_batch_size"] > 1
        assert found["p50_ms"] <= found["p99_ms"] <= found["p100_ms"]

        def counted() -> ServedModel | None:
            models = [served for process in daemon.snapshot().processes for served in process.served_models]
            return models[0] if models and models[0].requests_total == REQUESTS else None

        served = wait_until(counted)
        assert (served.name, served.failed_requests_total, served.queue_depth) == ("Classifier", 0, 0)
        assert served.neuroncore_indices == (0, 1, 2, 3)
        assert served.samples_total == 16 * served.calls_total, "each execution has the traced batch size"
        server.send_signal(signal.SIGINT)
        assert f"{REQUESTS} requests, 0 failed" in server.communicate(timeout=HANG_SECONDS)[1]


def status(port: int, body: object) -> int | None:
    """Returns the status of an answer; None while nothing listens."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/classify", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except urllib.error.URLError:
        return None
