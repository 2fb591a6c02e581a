"""Trials of Ctrl-C: SIGINT reaches the process group of a neuron-run at a random moment of its run."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from campaign.host import Host, host
from campaign.outcome import Outcome
from campaign.population import owners_are
from neurontools.util.errors import EXIT_INTERRUPTED

_TRAINING = """
import sys, torch, torch_xla.core.xla_model as xm
device = xm.xla_device()
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).to(device)
optimizer = torch.optim.Adam(model.parameters())
for step in range(200):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16, device=device)).square().mean()
    loss.backward()
    xm.optimizer_step(optimizer); xm.mark_step()
    if step % 10 == 0:
        print(step, loss.item(), flush=True)
"""
_LONGEST_END_SECONDS = 5.0
_HANG_SECONDS = 60.0
_MARK = "NEURONTOOLS_TRIAL"
_UNEXPECTED = re.compile(
    r"lost sys\.|sys\.excepthook|Fatal Python error|Exception ignored|internal error|leaked|"
    r"terminate called|Aborted|core dumped|^[\w.]*(?<!Keyboard)(?:Error|Exception|Warning)\b.*",
    re.MULTILINE,
)
_CACHES = ("cache", "torchinductor_")  # the compile caches of the device and of torch outlive all runs


@dataclass(frozen=True)
class _End:
    """How one interrupted run ended. `cpu_seconds` is the CPU time of all its processes after the signal."""

    exit_code: int
    seconds: float
    cpu_seconds: float
    errors: str
    left: list[str]


def interrupts(seconds: float, random: Random, directory: Path) -> list[Outcome]:
    """Interrupts runs with one worker and with two, from their first millisecond to their end."""
    script = directory / "train.py"
    script.write_text(_TRAINING)
    outcomes = []
    with host(directory) as daemon:
        for workers in (1, 2):
            outcome = Outcome(f"Ctrl-C, {workers} worker{'s' * (workers > 1)}")
            whole_seconds = _whole_run_seconds(daemon, workers, script)
            slowest, most_cpu_seconds, late = 0.0, 0.0, 0
            deadline = time.monotonic() + seconds / 2
            while time.monotonic() < deadline:
                after_seconds = random.uniform(0.0, whole_seconds)
                end = _interrupted_run(daemon, workers, script, after_seconds)
                if end is None:  # the run had ended before
                    continue
                outcome.rounds += 1
                outcome.failures += [f"after {after_seconds:.3f} s: {problem}" for problem in _problems(end)]
                outcome.check(daemon.settles(lambda snapshot: owners_are([], snapshot)), "cores stay held")
                slowest, most_cpu_seconds = max(slowest, end.seconds), max(most_cpu_seconds, end.cpu_seconds)
                late += end.seconds > _LONGEST_END_SECONDS
            outcome.figure = (
                f"ended {slowest:.1f} s later at the slowest, after {most_cpu_seconds:.1f} s of CPU; "
                f"{late} later than {_LONGEST_END_SECONDS:g} s"
            )
            outcomes.append(outcome)
    return outcomes


def _problems(end: _End) -> list[str]:
    problems = list(end.left)
    if end.exit_code not in (EXIT_INTERRUPTED, -signal.SIGINT):
        problems.append(f"exit code {end.exit_code}: {end.errors[-300:]!r}")
    if end.seconds > _LONGEST_END_SECONDS and end.cpu_seconds > _LONGEST_END_SECONDS:
        problems.append(f"ended {end.seconds:.1f} s later, after {end.cpu_seconds:.1f} s of CPU")
    found = _UNEXPECTED.search(end.errors)
    if found is not None:
        problems.append(f"standard error has {found[0]!r}: {end.errors[-3000:]!r}")
    return problems


def _whole_run_seconds(daemon: Host, workers: int, script: Path) -> float:
    """Runs the script to its end and returns how long that takes."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=daemon.directory) as directory:
        process = _start(daemon, workers, script, Path(directory), subprocess.DEVNULL)
        if process.wait():
            raise RuntimeError(f"the training failed with exit code {process.returncode}")
    return time.monotonic() - began


def _start(daemon: Host, workers: int, script: Path, directory: Path, errors: int) -> subprocess.Popen[bytes]:
    options = ("-n", str(workers)) if workers > 1 else ()
    command = "from neurontools.cli.entry import neuron_run; neuron_run()"
    return subprocess.Popen(
        [sys.executable, "-c", command, "--socket", daemon.socket, *options, str(script)],
        cwd=directory,
        env={**os.environ, "TMPDIR": str(directory), _MARK: directory.name, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        start_new_session=True,
    )


def _interrupted_run(daemon: Host, workers: int, script: Path, after_seconds: float) -> _End | None:
    """Interrupts one run after so many seconds. Returns None if it had ended before."""
    shared_before = _shared_memory()
    with tempfile.TemporaryDirectory(dir=daemon.directory) as name, tempfile.TemporaryFile() as errors:
        directory = Path(name)
        cpu_before = _ended_cpu_seconds()
        process = _start(daemon, workers, script, directory, errors.fileno())
        try:
            process.wait(after_seconds)
        except subprocess.TimeoutExpired:
            pass
        else:
            return None
        pids = _processes_of(directory.name)
        cpu_at_signal = sum(map(_cpu_seconds, pids))
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        left = []
        try:
            process.wait(_HANG_SECONDS)
        except subprocess.TimeoutExpired:
            left.append(f"it hangs: {[_command_line(pid) for pid in _processes_of(directory.name)]}")
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        ended = time.monotonic() - began
        if process.returncode == 0:  # the signal came after the end of the work
            return None
        if running := _processes_of(directory.name):
            left.append(f"processes are left: {[_command_line(pid) for pid in running]}")
        if files := [path.name for path in directory.rglob("*") if not any(each in str(path) for each in _CACHES)]:
            left.append(f"files are left: {files}")
        if shared := [each for each in _shared_memory() - shared_before if any(str(pid) in each for pid in pids)]:
            left.append(f"shared memory is left: {shared}")
        errors.seek(0)
        return _End(
            process.returncode,
            ended,
            _ended_cpu_seconds() - cpu_before - cpu_at_signal,
            errors.read().decode("utf-8", "replace"),
            left,
        )


def _processes_of(mark: str) -> list[int]:
    """Returns the running processes that inherited the mark of a run. Zombies have no environment."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                if f"{_MARK}={mark}".encode() in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
            except OSError:
                continue
    return found


def _command_line(pid: int) -> str:
    try:
        return f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode()}"
    except OSError:
        return str(pid)


def _cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a running process; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _ended_cpu_seconds() -> float:
    """Returns the CPU time of all ended children of this process, with their children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}
