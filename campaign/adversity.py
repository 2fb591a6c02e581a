"""Trials with full disks, a wall clock that jumps, and the processes of a day within minutes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

from campaign.host import Host, host, neuron_ls
from campaign.outcome import Outcome
from campaign.population import Worker, owners_are

_MEMORY_SLACK_BYTES = 10 * 2**20
_CLOCK_SLACK_SECONDS = 0.9  # less than the smallest jump of the clock
_SET_PYTHON_CLOCK = """
import time

_time = time.time


def _set_time():
    with open({file!r}) as file:
        return _time() + float(file.read().strip().removesuffix("s"))


time.time = _set_time
"""


def full_disk(seconds: float, random: Random, directory: Path) -> Outcome:
    """Runs every writer on a full file system, in its own mount namespace."""
    outcome = Outcome("full disk")
    mount = directory / "full"
    mount.mkdir()
    inside = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    prepare = f'mount -t tmpfs -o size=32k none "{mount}" && cd "{mount}" && '
    if subprocess.run([*inside, f"{prepare} true"], capture_output=True, check=False).returncode:
        outcome.skipped = "skipped: no mount namespace can be had here"
        return outcome
    python = f'"{sys.executable}"'
    top = f'{python} -c "from neurontools.cli.top.command import main; main()"'
    monitor = f'{python} -c "from neurontools.cli.monitor.command import main; main()"'
    with host(directory) as daemon:
        commands = [
            f'{top} --json-lines --record x.rec -i 0.05 --socket "{daemon.socket}" > /dev/null',
            f'{top} --json --socket "{daemon.socket}" > out',
            f'{monitor} --socket "{daemon.socket}" > out',
            f"{python} -m neurond --simulate inf2.xlarge --socket {directory}/other.sock --export-sysfs tree",
        ]
        deadline = time.monotonic() + seconds
        while not outcome.rounds or time.monotonic() < deadline:
            command = commands[outcome.rounds % len(commands)]
            outcome.rounds += 1
            process = subprocess.Popen(
                [*inside, prepare + command], stderr=subprocess.PIPE, text=True, start_new_session=True
            )
            try:
                told = process.communicate(timeout=5 if "neurond" in command else 60)[1]
            except subprocess.TimeoutExpired:  # a daemon that could write its tree keeps running
                os.killpg(process.pid, signal.SIGTERM)
                told = process.communicate()[1]
            outcome.check("Traceback" not in told, f"{command.split(' ', 3)[-1][:60]}: {told[-200:]}")
        outcome.check(daemon.settles(lambda snapshot: len(snapshot.cores) == 32), "the daemon does not answer any more")
    outcome.figure = "a line each, no traceback"
    return outcome


def clock_jumps(seconds: float, random: Random, directory: Path) -> Outcome:
    """Sets the daemon's wall clock back and forth. Owners stay, and counters go on.

    libfaketime sets it for all code of the daemon. Where it is missing, a module at the start of Python sets it for
    Python's `time.time`. A time namespace can't: it has no offset for CLOCK_REALTIME.
    """
    outcome = Outcome("clock jumps")
    clock = directory / "clock"
    clock.mkdir()
    offset, library = clock / "offset", _faketime()
    offset.write_text("+0s\n")
    if library is None:
        (clock / "sitecustomize.py").write_text(_SET_PYTHON_CLOCK.format(file=str(offset)))
        environment = {"PYTHONPATH": os.pathsep.join((str(clock), *sys.path[1:]))}
    else:
        environment = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(offset),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
    with host(directory, environment=environment) as daemon:
        workers = [Worker(daemon.socket, 2, directory / "workers.log")]
        deadline = time.monotonic() + seconds
        while not outcome.rounds or time.monotonic() < deadline:
            outcome.rounds += 1
            moved_seconds = random.choice((-86400, -120, -1, 1, 120, 86400))
            staged = clock / "staged"
            staged.write_text(f"{moved_seconds:+d}s\n")
            staged.replace(offset)
            sequence = daemon.snapshot().sequence
            outcome.check(workers[0].execute(50), "the worker is gone")
            outcome.check(
                daemon.settles(lambda snapshot, past=sequence: snapshot.sequence > past + 2),  # type: ignore[misc]
                "the daemon stands still",
            )
            outcome.check(
                daemon.settles(
                    lambda snapshot, by=moved_seconds: (  # type: ignore[misc]
                        abs(snapshot.taken_at_unix_seconds - time.time() - by) < _CLOCK_SLACK_SECONDS
                    )
                ),
                "snapshots do not follow the clock",
            )
            outcome.check(owners_are(workers, daemon.snapshot()), "wrong owners")
            outcome.check(neuron_ls(daemon.socket)[0], "neuron-ls is not answered")
        workers[0].end()
        outcome.check("Traceback" not in daemon.log, "the daemon's log has a traceback")
    outcome.figure = f"owners and ticks as before, by {'libfaketime' if library else 'the clock of Python'}"
    return outcome


def soak(seconds: float, random: Random, directory: Path) -> Outcome:
    """Starts and ends processes and commands all the time. Memory and descriptors must not grow."""
    outcome = Outcome("soak with churn")
    with host(directory) as daemon:
        for _ in range(10):
            _churn(daemon, random, directory, outcome)
        before_bytes, before_files = daemon.resident_bytes, _descriptors(daemon)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            outcome.rounds += 1
            _churn(daemon, random, directory, outcome)
        grown = daemon.resident_bytes - before_bytes
        outcome.check(grown <= _MEMORY_SLACK_BYTES, f"memory grew by {grown / 2**20:.1f} MiB")
        outcome.check(daemon.settles(lambda snapshot: not snapshot.processes), "a process stays that has ended")
        outcome.check(_descriptors(daemon) <= before_files + 4, "descriptors stay open")
        outcome.check("Traceback" not in daemon.log, "the daemon's log has a traceback")
    outcome.figure = f"memory {grown / 2**20:+.1f} MiB"
    return outcome


def _churn(daemon: Host, random: Random, directory: Path, outcome: Outcome) -> None:
    worker = Worker(daemon.socket, random.choice((1, 4)), directory / "workers.log")
    outcome.check(worker.execute(random.randrange(50)), "a worker is gone")
    outcome.check(neuron_ls(daemon.socket)[0], "neuron-ls is not answered")
    worker.end(random.choice((signal.SIGKILL, None)))


def _descriptors(daemon: Host) -> int:
    return len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))


def _faketime() -> str | None:
    if shutil.which("faketime") is None:
        return None
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    return str(found[0]) if found else None
