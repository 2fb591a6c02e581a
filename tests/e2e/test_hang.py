"""Two real ranks: while one compiles nothing is wrong, however long the other waits; one that stands still is named."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from neurontools.model import Process, Severity
from neurontools.model.finding import FindingKind
from tests.harness.neuron_run import Started
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.waiting import wait_until

pytest.importorskip("torch")

LIMIT_SECONDS = 4.0  # a process that is stopped is known to be silent by then
SCRIPT = """
import os, time, torch, torch_xla.core.xla_model as xm
from neurontools.runtime.counting.steps import COMPILE, step_clock
device = xm.xla_device()
weight = torch.ones(4, 4, device=device, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.01)
open(f"pid{xm.get_ordinal()}", "w").write(str(os.getpid()))
steps = 0
while True:
    optimizer.zero_grad()
    (weight @ weight).sum().backward()
    xm.optimizer_step(optimizer); xm.mark_step()
    steps += 1
    open(f"alive{xm.get_ordinal()}", "a").write(".")
    if steps == 40 and xm.get_ordinal() == 1:
        compiles = step_clock.open(COMPILE, time.perf_counter())
        while not os.path.exists("compiled"): time.sleep(0.02)
        step_clock.close(compiles, time.perf_counter())
"""


def waiting_seconds(daemon: RunningDaemon, pid: int) -> float:
    """How long a process has been in a collective."""
    process: Process | None = daemon.find(pid)
    since = process.training.collective_since_seconds if process is not None and process.training is not None else None
    return 0.0 if since is None else daemon.snapshot().taken_at_seconds - since


@pytest.mark.long
def test_a_rank_that_compiles_is_waited_for_and_one_that_stands_still_is_named(
    tmp_path: Path, start_daemon: StartDaemon
) -> None:
    settings = tmp_path / "neurond.toml"
    settings.write_text(f"[health]\nstuck_seconds = {LIMIT_SECONDS}\n")
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--interval", "0.1", "--config", str(settings))
    (tmp_path / "script.py").write_text(SCRIPT)
    run = Started(tmp_path, "-q", "--no-advice", "-n", "2", "script.py", socket=daemon.socket)
    stopped = 0
    try:
        pids = [run.pid_of(rank) for rank in range(2)]
        wait_until(lambda: waiting_seconds(daemon, pids[0]) > 2.5 * LIMIT_SECONDS)
        assert daemon.findings(FindingKind.STUCK) == []
        (tmp_path / "compiled").touch()
        wait_until(lambda: len((tmp_path / "alive1").read_text()) > 60)
        os.kill(pids[1], signal.SIGSTOP)
        stopped = pids[1]
        (found,) = wait_until(lambda: daemon.findings(FindingKind.STUCK))
        assert (found.pid, found.severity) == (pids[1], Severity.CRITICAL)
        assert found.pids == tuple(sorted(pids))
        assert found.reason.startswith("1 rank waits in all_reduce (number ")
        assert f" for rank 1, PID {pids[1]}, which " in found.reason
        wait_until(lambda: any("has stopped reporting" in each.reason for each in daemon.findings(FindingKind.STUCK)))
        os.kill(pids[1], signal.SIGCONT)
        stopped = 0
        wait_until(lambda: not daemon.findings(FindingKind.STUCK))
    finally:
        if stopped:
            os.kill(stopped, signal.SIGCONT)
        run.close()
