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


def programs(seconds: float, random: Random, directory: Path) -> list[Outcome]:
    """Runs random programs under the two names of the device, with the same seeds."""
    first_seed = random.randrange(1 << 30)
    return [_programs_under(name, seconds / 2, first_seed, directory) for name in ("neuron", "xla")]


def _programs_under(name: str, seconds: float, seed: int, directory: Path) -> Outcome:
    outcome = Outcome(f"random programs under `{name}`", figure="results as on the CPU, bit by bit")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        seed = _run_worker(outcome, name, seed, deadline, directory)
    return outcome


def _run_worker(outcome: Outcome, name: str, seed: int, deadline: float, directory: Path) -> int:
    """Runs programs in one process until the deadline or until the process ends. Returns the next seed."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "NEURONTOOLS_DEVICE": name,
        "NEURONTOOLS_SOCKET": str(directory / "no.sock"),
        "NEURON_COMPILE_CACHE_URL": str(directory / "cache"),
    }
    command = [sys.executable, "-W", "ignore", "-m", "campaign.program_worker", name, str(seed), str(1 << 30)]
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
