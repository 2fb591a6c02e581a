"""Trials in which one peer floods a daemon while others must be served.

As root the campaign creates a user in the daemon's group for the flood. Otherwise the daemon's user floods.
"""

from __future__ import annotations

import math
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from campaign.host import Host, host, neuron_ls
from campaign.outcome import Outcome

_MEMORY_SLACK_BYTES = 10 * 2**20
_LONGEST_STOP_SECONDS = 0.05
_WARM_UP_CALLS = 5
_CALM_CALLS = 50


def floods(seconds: float, random: Random, directory: Path) -> list[Outcome]:
    """Runs each kind of flood on each socket of one daemon, and measures how other clients are served."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ["--simulate", "trn1.32xlarge", "--interval", "0.2", "--metrics-listen", f"127.0.0.1:{port}"]
    outcomes = []
    stops = Outcome("event loop's longest stop")
    with _other_user() as user:
        if user is not None:
            flags += ["--group", user.pw_name]
            directory.chmod(0o711)
        with host(directory, *flags) as daemon:
            sockets = {"the API": daemon.socket, "attaching": _attach_socket(daemon), "metrics": f"127.0.0.1:{port}"}
            plan = [
                ("silent", "the API"),
                ("resets", "the API"),
                ("stalled", "the API"),
                ("garbage", "the API"),
                ("reports", "the API"),
                ("silent", "attaching"),
                ("garbage", "attaching"),
                ("silent", "metrics"),
                ("half", "metrics"),
                ("garbage", "metrics"),
            ]
            random.shuffle(plan)
            _served(daemon, port, _WARM_UP_CALLS)
            outcomes.append(_calm(daemon))
            longest_seconds, when = _longest_stop_seconds(port), "without any"
            for kind, target in plan:
                by = user if target != "metrics" else None  # network peers have no user
                outcomes.append(_flood(daemon, port, kind, target, sockets[target], seconds / len(plan), by))
                now_seconds = _longest_stop_seconds(port)
                stops.rounds += 1
                if now_seconds > longest_seconds:
                    longest_seconds, when = now_seconds, f"in the {outcomes[-1].name}"
            outcomes[-1].check("Traceback" not in daemon.log, "the daemon's log has a traceback")
            outcomes[-1].check(len(daemon.log) < 100_000, f"the daemon's log has {len(daemon.log)} bytes")
    stops.check(longest_seconds <= _LONGEST_STOP_SECONDS, f"it was {1000 * longest_seconds:.0f} ms, {when}")
    stops.figure = f"{1000 * longest_seconds:.0f} ms of CPU, {when}"
    if user is None:
        stops.figure += "; floods by another user skipped: only root can make one"
    return [*sorted(outcomes, key=lambda outcome: outcome.name), stops]


@contextmanager
def _other_user() -> Iterator[pwd.struct_passwd | None]:
    """Creates a user and a group for the length of a block. Yields None if this process can't create users."""
    name = f"campaign{os.getpid()}"
    command = ["useradd", "--system", "--user-group", "--no-create-home", "--shell", "/bin/false", name]
    if os.geteuid() or not shutil.which("useradd") or subprocess.run(command, check=False).returncode:
        yield None
        return
    try:
        yield pwd.getpwnam(name)
    finally:
        subprocess.run(["userdel", name], check=True)


def _longest_stop_seconds(port: int) -> float:
    """Returns the CPU time of the longest iteration of the daemon's event loop so far."""
    found = re.search(rb"^neurontools_daemon_longest_turn_cpu_seconds (\S+)$", _scrape(port), re.MULTILINE)
    return float(found[1]) if found else math.inf


def _flood(
    daemon: Host, port: int, kind: str, target: str, place: str, seconds: float, user: pwd.struct_passwd | None
) -> Outcome:
    outcome = Outcome(f"flood of {target}: {kind}" + (", by another user" if user else ""))
    before_bytes = daemon.resident_bytes
    as_user = [str(user.pw_gid), str(user.pw_uid)] if user else []
    flood = subprocess.Popen(
        [sys.executable, "-m", "campaign.flood", kind, place, str(seconds), *as_user],
        stdout=subprocess.PIPE,
        text=True,
    )
    slowest_seconds = 0.0
    while flood.poll() is None:
        outcome.rounds += 1
        answered, took_seconds, told = neuron_ls(daemon.socket)
        slowest_seconds = max(slowest_seconds, took_seconds)
        outcome.check(answered, f"neuron-ls was not answered: {told.strip()[:200]}")
        if target == "metrics":
            outcome.check(_scraped(port), "a scrape was not answered")
    count = flood.communicate()[0].strip()
    outcome.check(flood.returncode == 0, f"the flood failed with exit code {flood.returncode}")
    settled = daemon.memory_settles(before_bytes + _MEMORY_SLACK_BYTES)
    grown = daemon.resident_bytes - before_bytes
    outcome.check(settled, f"memory stays {grown / 2**20:.1f} MiB higher")
    outcome.figure = f"{count} times; neuron-ls {slowest_seconds:.2f} s at the slowest; memory {grown / 2**20:+.1f} MiB"
    return outcome


def _calm(daemon: Host) -> Outcome:
    """Measures neuron-ls without a flood, as the reference for times during floods."""
    outcome = Outcome("neuron-ls without a flood")
    slowest_seconds = 0.0
    for _ in range(_CALM_CALLS):
        outcome.rounds += 1
        answered, took_seconds, told = neuron_ls(daemon.socket)
        slowest_seconds = max(slowest_seconds, took_seconds)
        outcome.check(answered, f"neuron-ls was not answered: {told.strip()[:200]}")
    outcome.figure = f"{slowest_seconds:.2f} s at the slowest"
    return outcome


def _served(daemon: Host, port: int, times: int) -> None:
    """Makes requests of each kind, because memory that the first ones take does not count as growth."""
    for _ in range(times):
        neuron_ls(daemon.socket)
        _scraped(port)
    time.sleep(1)  # a few ticks fill rates and history


def _scraped(port: int) -> bool:
    return b"neuron_hardware_info" in _scrape(port)


def _scrape(port: int) -> bytes:
    """Scrapes the metrics. Returns an empty string without a reply."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
            return bytes(reply.read()) if reply.status == 200 else b""
    except OSError:
        return b""


def _attach_socket(daemon: Host) -> str:
    """Returns the path of the socket at which processes attach."""
    found = [path for path in daemon.directory.iterdir() if path.is_socket() and str(path) != daemon.socket]
    return str(found[0])
