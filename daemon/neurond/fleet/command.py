"""`neuron-fleet-sim`: a fleet of simulated hosts to try dashboards, scripts and `neuron-top --hostfile` with."""

from __future__ import annotations

import argparse
import json
import os
import select
import tempfile
from contextlib import ExitStack, suppress
from typing import NoReturn

from neurond.fleet.plan import MOST_HOSTS, USUAL_MIX, HostPlan, parse_mix, plan
from neurond.fleet.processes import Processes
from neurond.startup.checks import check
from neurontools import catalog
from neurontools.cli.line import frame
from neurontools.cli.line.about import exit_code_text
from neurontools.cli.line.frame import write_text
from neurontools.cli.line.telling import tell
from neurontools.fleet.file_sd import PLACE_LABEL
from neurontools.fleet.hosts import hostfile_text
from neurontools.util.directory import Directory, NotTrusted
from neurontools.util.errors import EXIT_USAGE, UserError

HOSTFILE, PIDS, FILE_SD = "hosts", "pids", "file_sd.json"
EXIT_CODES = (
    (0, "what was asked for was printed"),
    (1, "a host can't be served, or something failed"),
    (2, "an option has a value that can't be meant"),
    (4, "a socket can't be made in the directory"),
    (70, "a fault of the command itself"),
    (130, "interrupted"),
)
_HOSTS_OF_A_SECOND = 10  # whose snapshots take about a fifth of a core
_LOOK_SECONDS = 1.0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see neuron-fleet-sim --help", EXIT_USAGE)

    def print_help(self, file: object = None) -> None:  # noqa: ARG002
        write_text(self.format_help())


def parser() -> argparse.ArgumentParser:
    """The definition of all flags; the manual page shows the same ones."""
    made = _Parser(
        prog="neuron-fleet-sim",
        description="Serves many simulated Neuron hosts from few processes, each with a socket of its own.",
        epilog=exit_code_text(EXIT_CODES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--hosts", metavar="N", type=int, default=16, help=f"how many, up to {MOST_HOSTS}; default: 16")
    add("--mix", default=USUAL_MIX, help="what they are: TYPE[/SCENARIO][=SHARE], with commas between; default: a mix")
    add("--directory", metavar="DIR", help="where sockets and the hostfile go; default: a directory that goes again")
    add("--seed", metavar="N", type=int, default=0, help="the same seed gives the same fleet; default: 0")
    add("--interval", metavar="SECONDS", type=float, help="time between two snapshots; default: 1, more for many hosts")
    add("--processes", metavar="N", type=int, help="how many processes serve them; default: one a vCPU")
    add("--metrics-from", metavar="PORT", type=int, help="serve metrics on 127.0.0.1, of the first host on this port")
    add("--ready-fd", metavar="FD", type=int, help="write the directory to this file descriptor once all are served")
    add("--while-fd", metavar="FD", type=int, help="end, too, when nobody holds the other end of this pipe any more")
    return made


def main() -> None:
    """Run the command and end the process."""
    frame.run("neuron-fleet-sim", _run)


def _run(arguments: list[str]) -> int:
    given = parser().parse_args(arguments)
    process_count = _whole("--processes", given.processes or os.cpu_count() or 1, 1, MOST_HOSTS)
    with ExitStack() as stack:
        path = given.directory or stack.enter_context(tempfile.TemporaryDirectory(prefix="neuron-fleet-"))
        path = os.path.abspath(path)  # noqa: PTH100
        plans = _plans(given, path)
        directory = stack.enter_context(_opened(path))
        processes = stack.enter_context(Processes(plans, process_count))
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
    """The hosts that were asked for, each checked as neurond checks itself."""
    count = _whole("--hosts", given.hosts, 1, MOST_HOSTS)
    interval = max(1.0, count / _HOSTS_OF_A_SECOND) if given.interval is None else given.interval
    if not 0.05 <= interval <= 3600:
        raise UserError("--interval: give a number of seconds from 0.05 to 3600", EXIT_USAGE)
    if given.metrics_from is not None:
        _whole("--metrics-from", given.metrics_from, 1, 65_535)
    try:
        plans = plan(
            count,
            parse_mix(given.mix),
            directory,
            seed=_whole("--seed", given.seed, 0, 2**63),
            interval_seconds=interval,
            first_metrics_port=given.metrics_from,
        )
    except catalog.UnknownInstanceType as error:
        raise UserError(f"--mix: {error}", EXIT_USAGE) from None
    except ValueError as error:
        raise UserError(
            f"--mix: {error}" if "port" not in str(error) else f"--metrics-from: {error}", EXIT_USAGE
        ) from None
    check(plans[0].settings)
    return plans


def _whole(flag: str, number: int, least: int, most: int) -> int:
    if not least <= number <= most:
        raise UserError(f"{flag} {number}: give a whole number from {least} to {most}", EXIT_USAGE)
    return number


def _opened(path: str) -> Directory:
    try:
        return Directory.open(path, make_mode=0o700)
    except NotTrusted as error:
        raise UserError(f"--directory {error.filename}: {error.strerror}; give one of your own", EXIT_USAGE) from None
    except OSError as error:
        raise UserError(f"--directory {path}: {error.strerror}; give one that can be written", EXIT_USAGE) from None


def _files(plans: tuple[HostPlan, ...], processes: Processes) -> dict[str, str]:
    """What stands beside the sockets: the hostfile, the process of each host, and targets for Prometheus."""
    files = {
        HOSTFILE: hostfile_text(plan.place for plan in plans),
        PIDS: "".join(f"{name} {pid}\n" for name, pid in sorted(processes.pids.items())),
    }
    if plans[0].settings.metrics_listen is not None:
        targets = [
            {
                "targets": [plan.settings.metrics_listen],
                "labels": {"node": plan.place.name, PLACE_LABEL: plan.place.text},
            }
            for plan in plans
        ]
        files[FILE_SD] = json.dumps(targets, indent=1) + "\n"
    return files


def _removed(directory: Directory, name: str) -> None:
    with suppress(OSError):  # who took it away had it in mind
        directory.remove(name)


def _wait(processes: Processes, while_fd: int | None) -> None:
    """Until a signal or the end of a pipe ends the command; hosts whose process ended meanwhile are told of once."""
    told: set[str] = set()
    watched = [] if while_fd is None else [while_fd]
    while True:
        if select.select(watched, [], [], _LOOK_SECONDS)[0] and not os.read(watched[0], 1):
            return
        gone = [name for name in processes.ended() if name not in told]
        if gone:
            told.update(gone)
            tell(
                f"neuron-fleet-sim: no longer served, their process has ended: {', '.join(gone[:8])}"
                + (f" and {len(gone) - 8} more" if len(gone) > 8 else "")
            )


if __name__ == "__main__":
    main()
