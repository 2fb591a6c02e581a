"""Trial of random training programs on the simulated device, compared with the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

from campaign.outcome import Outcome


def programs(seconds: float, random: Random, directory: Path) -> Outcome:
    """Runs random programs under the name `neuron`. Under `xla`, some errors come when the graph is executed."""
    outcome = Outcome("random programs", figure="results as on the CPU, bit by bit")
    deadline, seed = time.monotonic() + seconds, random.randrange(1 << 30)
    while time.monotonic() < deadline:
        seed = _run_worker(outcome, seed, deadline, directory)
    return outcome


def _run_worker(outcome: Outcome, seed: int, deadline: float, directory: Path) -> int:
    """Runs programs in one process until the deadline or until the process ends. Returns the next seed."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "NEURONTOOLS_DEVICE": "neuron",
        "NEURONTOOLS_SOCKET": str(directory / "no.sock"),
        "NEURON_COMPILE_CACHE_URL": str(directory / "cache"),
    }
    command = [sys.executable, "-W", "ignore", "-m", "campaign.program_worker", "neuron", str(seed), str(1 << 30)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        for line in worker.stdout:
            found = json.loads(line)
            outcome.rounds += 1
            seed = found["seed"] + 1
            outcome.check(not found["difference"], f"seed {found['seed']}: {found['difference']}")
            if time.monotonic() > deadline:
                worker.kill()
                return seed
    outcome.failures.append(f"seed {seed}: its process ended with exit code {worker.returncode}")
    return seed + 1
