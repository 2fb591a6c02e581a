"""A process serves traced models to many threads: no request is lost, and all counts are exact in every event."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from neurontools.model import ServedModel
from tests.harness import python_process
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

pytest.importorskip("torch")
FLAGS = ("--simulate", "trn1.2xlarge", "--interval", "0.05")
CLIENTS = 32
SERVER = f"""
import sys, warnings
from concurrent.futures import ThreadPoolExecutor
warnings.simplefilter("ignore", DeprecationWarning)
import torch, torch_neuronx

def build(path):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))

        def forward(self, x):
            return self.layers(x)

    model = Model().eval()
    torch.jit.save(torch_neuronx.trace(model, torch.rand(2, 16)), path)
    inputs = [torch.rand(2, 16) for _ in range({CLIENTS})]
    return inputs, [model(x) for x in inputs]

@torch.no_grad()
def serve(client):
    index, count = client
    return sum(torch.equal(served(inputs[index]), expected[index]) for _ in range(count))

inputs, expected = build(sys.argv[1])
served = torch.jit.load(sys.argv[1])
torch_neuronx.experimental.set_multicore(served)
with ThreadPoolExecutor({CLIENTS}) as clients:
    for line in sys.stdin:
        print(sum(clients.map(serve, [(index, int(line) // {CLIENTS}) for index in range({CLIENTS})])), flush=True)
"""


class Server:
    """A process that serves a model on both cores. Each client compares the results with those of the CPU."""

    def __init__(self, processes: ExitStack, socket: str, directory: Path) -> None:
        script = directory / "serve.py"
        script.write_text(SERVER)
        self.process: subprocess.Popen[str] = python_process.popen(
            [sys.executable, "-m", "neurontools.runtime", script, directory / "model.pt"],
            loaded=python_process.TORCH,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "NEURONTOOLS_SOCKET": socket,
                "NEURON_COMPILE_CACHE_URL": str(directory / "cache"),
                "OMP_NUM_THREADS": "1",
            },
            text=True,
        )
        processes.callback(self.process.communicate)
        processes.callback(self.process.kill)

    def request(self, count: int) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"{count}\n"


def served(daemon: RunningDaemon, server: Server) -> ServedModel | None:
    process = daemon.find(server.process.pid)
    return process.served_models[0] if process is not None and process.served_models else None


def calls(daemon: RunningDaemon, server: Server) -> tuple[int, int, int] | None:
    """The calls and samples of the served model, and the executions of its programs."""
    process, model = daemon.find(server.process.pid), served(daemon, server)
    if process is None or model is None:
        return None
    return model.calls_total, model.samples_total, sum(each.executions_total or 0 for each in process.models)


@pytest.mark.parametrize("count", [320, pytest.param(9984, marks=pytest.mark.slow)])
def test_requests_of_many_clients_are_counted_exactly_also_over_a_restart_of_the_daemon(
    start_daemon: StartDaemon, tmp_path: Path, count: int
) -> None:
    daemon = start_daemon(*FLAGS)
    with ExitStack() as processes:
        server = Server(processes, daemon.socket, tmp_path)
        server.request(count)
        wait_until(lambda: calls(daemon, server) == (count, 2 * count, count))
        daemon.process.kill()
        daemon.process.wait()
        server.request(CLIENTS)  # while there is no daemon
        daemon = start_daemon(*FLAGS)
        total = count + CLIENTS
        wait_until(lambda: calls(daemon, server) == (total, 2 * total, total))
        model = served(daemon, server)
        assert model is not None
        assert [placement.neuroncore_index for placement in model.placements] == [0, 1]
        assert model.queue_depth == 0
        assert daemon.owners() == (server.process.pid, server.process.pid)


@pytest.mark.slow
def test_a_killed_server_frees_its_cores_for_the_next(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon(*FLAGS)
    with ExitStack() as processes:
        first = Server(processes, daemon.socket, tmp_path)
        first.request(CLIENTS)
        assert first.process.stdin
        first.process.stdin.write("1000000\n")  # it never ends
        first.process.stdin.flush()
        wait_until(lambda: (calls(daemon, first) or (0,))[0] > CLIENTS)
        first.process.kill()
        first.process.wait()
        wait_until(lambda: daemon.owners() == (None, None))
        second = Server(processes, daemon.socket, tmp_path)
        second.request(CLIENTS)
        wait_until(lambda: calls(daemon, second) == (CLIENTS, 2 * CLIENTS, CLIENTS))
