"""One peer does its worst, and others go on being served."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from random import Random

from campaign.host import Host, host, neuron_ls
from campaign.outcome import Outcome

_MEMORY_SLACK_BYTES = 10 * 2**20
_WARM_UP_CALLS = 5


def floods(seconds: float, random: Random, directory: Path) -> list[Outcome]:
    """Each flood of each socket for its share of the time, against one daemon."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ("--simulate", "trn1.32xlarge", "--interval", "0.2", "--metrics-listen", f"127.0.0.1:{port}")
    outcomes = []
    with host(directory, *flags) as daemon:
        sockets = {"the API": daemon.socket, "attaching": _attach_socket(daemon), "metrics": f"127.0.0.1:{port}"}
        plan = [
            ("silent", "the API"),
            ("resets", "the API"),
            ("stalled", "the API"),
            ("garbage", "the API"),
            ("silent", "attaching"),
            ("garbage", "attaching"),
            ("silent", "metrics"),
            ("half", "metrics"),
            ("garbage", "metrics"),
        ]
        random.shuffle(plan)
        _served(daemon, port, _WARM_UP_CALLS)
        for kind, target in plan:
            outcomes.append(_flood(daemon, port, kind, target, sockets[target], seconds / len(plan)))
        outcomes[-1].check("Traceback" not in daemon.log, "the daemon's log has a traceback")
        outcomes[-1].check(len(daemon.log) < 100_000, f"the daemon's log has {len(daemon.log)} bytes")
    return sorted(outcomes, key=lambda outcome: outcome.name)


def _flood(daemon: Host, port: int, kind: str, target: str, place: str, seconds: float) -> Outcome:
    outcome = Outcome(f"flood of {target}: {kind}")
    before_bytes = daemon.resident_bytes
    flood = subprocess.Popen(
        [sys.executable, "-m", "campaign.flood", kind, place, str(seconds)], stdout=subprocess.PIPE, text=True
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
    settled = daemon.memory_settles(before_bytes + _MEMORY_SLACK_BYTES)
    grown = daemon.resident_bytes - before_bytes
    outcome.check(settled, f"memory stays {grown / 2**20:.1f} MiB higher")
    outcome.figure = f"{count} times; neuron-ls {slowest_seconds:.2f} s at the slowest; memory {grown / 2**20:+.1f} MiB"
    return outcome


def _served(daemon: Host, port: int, times: int) -> None:
    """What a daemon comes to hold when it first serves is no growth."""
    for _ in range(times):
        neuron_ls(daemon.socket)
        _scraped(port)
    time.sleep(1)  # a few ticks: rates, history


def _scraped(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
            return bool(reply.status == 200 and b"neuron_hardware_info" in reply.read())
    except OSError:
        return False


def _attach_socket(daemon: Host) -> str:
    """The socket beside the API's at which processes attach."""
    found = [path for path in daemon.directory.iterdir() if path.is_socket() and str(path) != daemon.socket]
    return str(found[0])
