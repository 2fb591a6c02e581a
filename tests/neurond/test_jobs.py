from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from neurond.system.jobs import group_of

from neurontools.model import Job
from tests.harness.paths import ATTACHED_CHILD, PYTHONPATH
from tests.harness.running_daemon import RunningDaemon, StartDaemon

LAUNCHER = """
import json, os, subprocess, sys
ranks = [
    subprocess.Popen(
        [sys.executable, *sys.argv[2:], "1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=sys.argv[1] == "sessions",
        env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2"},
    )
    for rank in range(2)
]
for rank in ranks:
    rank.stdout.readline()
print(json.dumps([rank.pid for rank in ranks]), flush=True)
sys.stdin.read()
for rank in ranks:
    rank.stdin.close()
for rank in ranks:
    rank.wait()
"""


@pytest.mark.parametrize("manner", ["sessions", "group"])
def test_ranks_of_a_launcher_are_a_job(daemon: RunningDaemon, manner: str) -> None:
    """torchrun gives its workers sessions of their own; a shell's background jobs share a process group."""
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, manner, str(ATTACHED_CHILD), daemon.socket],
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as launcher:
        assert launcher.stdout is not None
        pids = json.loads(launcher.stdout.readline())
        name = f"job of PID {launcher.pid}" if manner == "sessions" else f"process group {launcher.pid}"
        for rank, pid in enumerate(pids):
            process = daemon.find(pid)
            assert process is not None
            assert process.job == Job(name, rank, 2)


def test_what_a_stat_file_may_hold() -> None:
    assert group_of(7, b"7 (a) b) c) S 5 6 6 0 -1") == "process group 6"
    assert group_of(7, b"7 (x) S 5 7 7 0") == "job of PID 5"
    assert group_of(7, b"7 (x) S 1 7 7 0") == "process group 7", "init launches no jobs"
    for text in (b"", b"7", b"7 (x) S", b"7 (x) S a b c", b"7 (x) S 0 0 0"):
        assert group_of(7, text) == ""


def test_a_synthetic_load_is_one_job(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn1.2xlarge", "--load", "steady", "--interval", "0.05")
    jobs = [process.job for process in daemon.next_snapshot().processes]
    assert jobs == [Job("synthetic load steady", 0, 2), Job("synthetic load steady", 1, 2)]
