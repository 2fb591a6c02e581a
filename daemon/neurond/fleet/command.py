"""`neuron-fleet-sim` runs a fleet of simulated hosts for trying out dashboards, scripts and `neuron-top --hostfile`."""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from neurond.settings import Settings
from neurond.sources.simulated import SCENARIOS
from neurond.startup import CommandParser
from neurond.startup.checks import check_settings
from neurontools import catalog
from neurontools.fleet.hosts import PLACE_LABEL, HostAddress, Reach, format_hostfile
from neurontools.util.command_lifecycle import exit_code_text, run_command, write_stderr, write_text
from neurontools.util.directory import Directory, NotTrusted
from neurontools.util.errors import EXIT_FAILURE, EXIT_USAGE, UserError
from neurontools.util.signals import defer_signals

HOSTFILE, PIDS, FILE_SD = "hosts", "pids", "file_sd.json"
EXIT_CODES = (
    (0, "the requested text was printed"),
    (1, "a host could not be served"),
    (2, "an option has an invalid value"),
    (4, "no socket can be created in the directory"),
    (70, "a defect of the command"),
    (130, "interrupted"),
)
_HOSTS_OF_A_SECOND = 10  # default for all hosts together: this many snapshots per second take a fifth of a CPU core
_POLL_SECONDS = 1.0


def parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="neuron-fleet-sim",
        description="Serves many simulated Neuron hosts from few processes, each with a socket of its own.",
        epilog=exit_code_text(EXIT_CODES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_completion()
    add = parser.add_argument
    add("--hosts", metavar="N", type=int, default=16, help=f"number of hosts, up to {MOST_HOSTS}; default: 16")
    add("--mix", default=USUAL_MIX, help="instance types: TYPE[/SCENARIO][=SHARE], comma-separated; default: a mix")
    add("--directory", metavar="DIR", help="directory for sockets and the hostfile; default: a temporary directory")
    add("--seed", metavar="N", type=int, default=0, help="the same seed gives the same fleet; default: 0")
    add("--interval", metavar="SECONDS", type=float, help="time between two snapshots; default: 1, more for many hosts")
    add("--processes", metavar="N", type=int, help="number of processes that serve the hosts; default: one per vCPU")
    add("--metrics-from", metavar="PORT", type=int, help="serve metrics on 127.0.0.1, starting at this port")
    add("--ready-fd", metavar="FD", type=int, help="write the directory to this file descriptor once all hosts serve")
    add("--while-fd", metavar="FD", type=int, help="also end when the other end of this pipe is closed")
    return parser


def main() -> None:
    run_command("neuron-fleet-sim", _run)


def _run(arguments: list[str]) -> int:
    given = parser().parse_args(arguments)
    process_count = _check_range("--processes", given.processes or os.cpu_count() or 1, 1, MOST_HOSTS)
    with ExitStack() as stack:
        path = given.directory or stack.enter_context(tempfile.TemporaryDirectory(prefix="neuron-fleet-"))
        path = os.path.abspath(path)  # noqa: PTH100
        plans = _plans(given, path)
        directory = stack.enter_context(_open_directory(path))
        processes = stack.enter_context(FleetProcesses(plans, process_count))
        for name, text in _files(plans, processes).items():
            directory.replace(name, text.encode())
            stack.callback(_removed, directory, name)
        if given.ready_fd is not None:
            os.write(given.ready_fd, f"{path}\n".encode())
            os.close(given.ready_fd)
        write_text(f"{len(plans)} hosts; look at them with: neuron-top --hostfile {path}/{HOSTFILE}\n")
        _wait(processes, given.while_fd)
    return 0


def _plans(given: argparse.Namespace, directory: str) -> tuple[HostPlan, ...]:
    """Returns the plans of the requested hosts. Checks the settings of the first host, as neurond does."""
    count = _check_range("--hosts", given.hosts, 1, MOST_HOSTS)
    interval = max(1.0, count / _HOSTS_OF_A_SECOND) if given.interval is None else given.interval
    if not 0.05 <= interval <= 3600:
        raise UserError("--interval: give a number of seconds from 0.05 to 3600", EXIT_USAGE)
    if given.metrics_from is not None:
        _check_range("--metrics-from", given.metrics_from, 1, 65_535)
    try:
        plans = plan_fleet(
            count,
            parse_mix(given.mix),
            directory,
            seed=_check_range("--seed", given.seed, 0, 2**63),
            interval_seconds=interval,
            first_metrics_port=given.metrics_from,
        )
    except catalog.UnknownInstanceType as error:
        raise UserError(f"--mix: {error}", EXIT_USAGE) from None
    except ValueError as error:
        flag = "--metrics-from" if "port" in str(error) else "--mix"
        raise UserError(f"{flag}: {error}", EXIT_USAGE) from None
    check_settings(plans[0].settings)
    return plans


def _check_range(flag: str, number: int, least: int, most: int) -> int:
    if not least <= number <= most:
        raise UserError(f"{flag} {number}: give a whole number from {least} to {most}", EXIT_USAGE)
    return number


def _open_directory(path: str) -> Directory:
    try:
        return Directory.open(path, make_mode=0o700)
    except NotTrusted as error:
        raise UserError(f"--directory {error.filename}: {error.strerror}; give one of your own", EXIT_USAGE) from None
    except OSError as error:
        raise UserError(f"--directory {path}: {error.strerror}; give one that can be written", EXIT_USAGE) from None


def _files(plans: tuple[HostPlan, ...], processes: FleetProcesses) -> dict[str, str]:
    """Returns the content of each file beside the sockets: the hostfile, the PIDs, and targets for Prometheus."""
    files = {
        HOSTFILE: format_hostfile(host.place for host in plans),
        PIDS: "".join(f"{name} {pid}\n" for name, pid in sorted(processes.pids.items())),
    }
    if plans[0].settings.metrics_listen is not None:
        targets = [
            {
                "targets": [host.settings.metrics_listen],
                "labels": {"node": host.place.name, PLACE_LABEL: host.place.text},
            }
            for host in plans
        ]
        files[FILE_SD] = json.dumps(targets, indent=1) + "\n"
    return files


def _removed(directory: Directory, name: str) -> None:
    with suppress(OSError):  # another process has already removed the file
        directory.remove(name)


def _wait(processes: FleetProcesses, while_fd: int | None) -> None:
    """Waits until a signal interrupts it or `while_fd` is closed. Reports each host whose process ended, once."""
    reported: set[str] = set()
    watched = [] if while_fd is None else [while_fd]
    while True:
        if select.select(watched, [], [], _POLL_SECONDS)[0] and not os.read(watched[0], 1):
            return
        gone = [name for name in processes.ended() if name not in reported]
        if gone:
            reported.update(gone)
            write_stderr(
                f"neuron-fleet-sim: no longer served, their process has ended: {', '.join(gone[:8])}"
                + (f" and {len(gone) - 8} more" if len(gone) > 8 else "")
            )


USUAL_MIX = (
    "trn1.32xlarge/steady=8,trn1.32xlarge=3,trn2.48xlarge/steady=5,trn2u.48xlarge/training-ramp=4,"
    "inf2.48xlarge=2,trn1.32xlarge/stuck-core=1,trn2.48xlarge/ecc-burst=1"
)
MOST_HOSTS = 2000
_HISTORY_SECONDS, _HISTORY_BYTES = 120.0, 2**20  # limits of a host's snapshot history: seconds, bytes
_HIGHEST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class HostMixEntry:
    """One entry of --mix: an instance type, a load scenario, and their weight among all hosts."""

    instance_type: str
    scenario: str | None
    weight: int


@dataclass(frozen=True, slots=True)
class HostPlan:
    place: HostAddress
    settings: Settings


def parse_mix(text: str) -> tuple[HostMixEntry, ...]:
    """Parses the value of --mix, `TYPE[/SCENARIO][=WEIGHT],…`. Raises ValueError with a one-line reason."""
    kinds = []
    for part in filter(None, map(str.strip, text.split(","))):
        named, equals, weight = part.partition("=")
        name, slash, scenario = named.partition("/")
        if equals and not (weight.isascii() and weight.isdigit() and len(weight) < 7 and int(weight)):
            raise ValueError(f"{part[:60]!r}: give a share as a whole number from 1, such as trn1.32xlarge=3")
        if slash and scenario not in SCENARIOS:
            raise ValueError(
                f"{part[:60]!r}: there is no scenario {scenario[:40]!r}; give one of {', '.join(SCENARIOS)}"
            )
        kinds.append(HostMixEntry(catalog.load(name).name, scenario or None, int(weight) if equals else 1))
    if not kinds:
        raise ValueError("names no instance type; write TYPE/SCENARIO=SHARE, such as trn1.32xlarge/steady=3")
    return tuple(kinds)


def plan_fleet(
    host_count: int,
    mix: tuple[HostMixEntry, ...],
    directory: str,
    *,
    seed: int = 0,
    interval_seconds: float = 1.0,
    first_metrics_port: int | None = None,
) -> tuple[HostPlan, ...]:
    """Returns the plans of all hosts, by name. Hosts of UltraServer types become nodes of UltraServers us-1, us-2, …"""
    if first_metrics_port is not None and first_metrics_port + host_count - 1 > _HIGHEST_PORT:
        raise ValueError(f"there are no {host_count} ports from {first_metrics_port} on")
    kinds = [kind for kind, count in zip(mix, _host_counts(host_count, mix), strict=True) for _ in range(count)]
    random.Random(seed).shuffle(kinds)  # noqa: S311 - seeded, so that a fleet is reproducible
    digits = max(3, len(str(host_count - 1)))
    places = [
        HostAddress(name, Reach.SOCKET, f"{directory}/{name}.sock")
        for name in (f"host-{number:0{digits}d}" for number in range(host_count))
    ]
    nodes = _nodes(kinds)
    return tuple(
        HostPlan(
            place,
            Settings(
                socket=place.address,
                interval_seconds=interval_seconds,
                history_seconds=_HISTORY_SECONDS,
                history_bytes=_HISTORY_BYTES,
                log_level="error",
                simulate=kind.instance_type,
                ultraserver=nodes[number],
                load=kind.scenario,
                load_seed=seed + number,
                metrics_listen=None if first_metrics_port is None else f"127.0.0.1:{first_metrics_port + number}",
            ),
        )
        for number, (place, kind) in enumerate(zip(places, kinds, strict=True))
    )


def _host_counts(host_count: int, mix: tuple[HostMixEntry, ...]) -> list[int]:
    """Returns the number of hosts for each entry of the mix, by weight. Rounds the largest remainders up."""
    whole = sum(kind.weight for kind in mix)
    counts = [host_count * kind.weight // whole for kind in mix]
    by_remainder = sorted(range(len(mix)), key=lambda at: (-(host_count * mix[at].weight % whole), at))
    for at in by_remainder[: host_count - sum(counts)]:
        counts[at] += 1
    return counts


def _nodes(kinds: list[HostMixEntry]) -> list[str | None]:
    """Returns the UltraServer node of each host as NAME:INDEX; None for types that no UltraServer has."""
    nodes: list[str | None] = []
    ultraserver_count = 0
    filling: dict[str, tuple[str, int]] = {}  # by instance type: the incomplete UltraServer, its next node
    for kind in kinds:
        ultraserver = catalog.load(kind.instance_type).ultraserver
        if ultraserver is None:
            nodes.append(None)
            continue
        if kind.instance_type not in filling:
            ultraserver_count += 1
            filling[kind.instance_type] = f"us-{ultraserver_count}", 0
        name, index = filling.pop(kind.instance_type)
        nodes.append(f"{name}:{index}")
        if index + 1 < ultraserver.node_count:
            filling[kind.instance_type] = name, index + 1
    return nodes


_STOP_SECONDS = 10.0


class FleetProcesses:
    """A context manager that serves all hosts in child processes. Entering raises UserError if a host can't start."""

    def __init__(self, plans: Sequence[HostPlan], process_count: int) -> None:
        self._plans = [plans[first::process_count] for first in range(min(process_count, len(plans)))]
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> dict[str, int]:
        return {
            host.place.name: child.pid
            for share, child in zip(self._plans, self._children, strict=True)
            for host in share
        }

    def __enter__(self) -> FleetProcesses:
        try:
            for share in self._plans:
                with defer_signals():  # a signal must not interrupt between starting a process and storing it
                    self._children.append(_started(share))
            for child in self._children:
                assert child.stdout is not None  # noqa: S101 - Popen made a pipe
                line = child.stdout.readline().decode("utf-8", "replace").strip()
                if line != "ready":
                    raise UserError(line or f"a process of the fleet ended with code {child.wait()}", EXIT_FAILURE)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with defer_signals():
            self._end()

    def ended(self) -> list[str]:
        return [
            host.place.name
            for share, child in zip(self._plans, self._children, strict=True)
            if child.poll() is not None
            for host in share
        ]

    def _end(self) -> None:
        for child in self._children:
            child.terminate()
        for child in self._children:
            try:
                child.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()


def _started(share: Sequence[HostPlan]) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        # -P keeps Python from importing modules of the current directory.
        [sys.executable, "-P", "-m", "neurond.fleet.worker", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches only the command, which ends the children
    )
    assert child.stdin is not None  # noqa: S101 - Popen made a pipe
    try:
        child.stdin.write("".join(f"{host.settings.to_json()}\n" for host in share).encode())
        child.stdin.close()
    except BrokenPipeError:
        pass  # the child has ended; the reason is in its output
    return child


if __name__ == "__main__":
    main()
