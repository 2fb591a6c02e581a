"""`neuron-healthcheck`: prints the findings of the monitor daemon as one line.

Monitoring tools run it every few seconds, so it must start fast: it uses no protobuf, and imports formats lazily.
"""

import os
from time import time

from neurontools.cli.daemon.connection import ask_first_daemon
from neurontools.cli.line import FILES, Option
from neurontools.util.command_lifecycle import run_command, write_text
from neurontools.util.errors import EXIT_NAGIOS_UNKNOWN, EXIT_USAGE, UserError

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, whose import takes several milliseconds
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

    from neurontools.model.health import HealthCriteria, HostVerdict


FORMATS = ("text", "json", "npd", "slurm", "nagios")
LEVELS = ("notice", "warning", "critical")
PROBLEMS = ("node", "user", "all")

OPTIONS = (
    Option("format", "the format of the verdict; default: text", value="FORMAT", words=FORMATS),
    Option("level", "the lowest severity that counts; default: warning", value="LEVEL", words=LEVELS),
    Option(
        "problems",
        "whose problems count; default: all, with --format npd or slurm node",
        value="WHOSE",
        words=PROBLEMS,
    ),
    Option("only", "only findings of these names count, such as HANG,NEEDS_RESET", value="NAMES", joins=True),
    Option("expect", "fewer Neuron devices than this are a finding", value="N"),
    Option("timeout", "when to give up; default: 10, with --format npd 3, with slurm 40", value="SECONDS"),
    Option(
        "node", "with --format slurm: the name of this node; default: SLURMD_NODENAME, else the host's", value="NAME"
    ),
    Option("no-undrain", "with --format slurm: never undrain the node"),
    Option("dry-run", "with --format slurm: print the action without doing it"),
    Option("socket", "use only the monitor daemon at this socket", value="PATH", completes=FILES),
    Option("completion", "print a completion script for this shell", value="SHELL", words=("bash", "zsh", "fish")),
    Option("version", "print the version", ends=True),
    Option("help", "print this text", short="h", ends=True),
)
USAGE = "neuron-healthcheck [options]"
SUMMARY = "Says in one line whether the Neuron devices of this host are well, to those who drain, replace or alert."
NOTES = """\
It goes by what the monitor daemon (neurond) has found; where none runs, it has the devices read once.

Environment:
  NEURONTOOLS_SOCKET  as --socket
  SLURMD_NODENAME     the name of this node, set by slurmd
"""
EXIT_CODES = (
    (0, "the host is healthy; for Nagios also a notice; for Slurm: the actions succeeded"),
    (1, "the host is unhealthy; for Nagios a warning; for Slurm: scontrol failed"),
    (2, "the health is unknown, or an option is invalid; for Nagios: critical"),
    (3, "for Nagios: the health is unknown, or an option is invalid"),
    (70, "a defect of the command"),
    (130, "interrupted"),
)


_COMMAND = "neuron-healthcheck"
_TIMEOUTS_SECONDS = {"npd": 3.0, "slurm": 40.0}
_TIMEOUT_SECONDS = 10.0
_LONGEST_TIMEOUT_SECONDS = 3600.0
_MOST_DEVICES = 1024
_OF_SLURM = ("node", "no-undrain", "dry-run")


class CheckTimeout(Exception):
    """The health check took longer than --timeout."""


def main() -> None:
    run_command(_COMMAND, _run_healthcheck)


def _run_healthcheck(arguments: list[str]) -> int:
    from neurontools.cli.line import information_text, parse_options, requests_information

    try:
        given = parse_options(OPTIONS, arguments)
        if requests_information(given):
            import sys

            write_text(information_text(_COMMAND, sys.modules[__name__], given))
            return 0
        from neurontools.util import light_imports

        light_imports.install_dataclasses()
        with light_imports.LightEnum():
            from neurontools.model import health  # noqa: F401
        return HealthCheck(given).run()
    except UserError as error:
        # Exit code 1 means an unhealthy host, so a usage error needs another code.
        raise UserError(str(error), _usage_exit_code(arguments)) from error


def _usage_exit_code(arguments: list[str]) -> int:
    typed = "=".join(arguments)  # joined by "=", so that one test matches both "--format nagios" and "--format=nagios"
    return EXIT_NAGIOS_UNKNOWN if "--format=nagios" in typed else EXIT_USAGE


class HealthCheck:
    """Runs one health check with the options of the command line."""

    def __init__(self, given: dict[str, str]) -> None:
        self._given = given
        self._format = _parse_word(given, "format", FORMATS, "text")
        for name in _OF_SLURM:
            if name in given and self._format != "slurm":
                raise UserError(f"--{name} is for --format slurm; leave it out", EXIT_USAGE)
        self._timeout_seconds = _parse_seconds(
            given.get("timeout"), _TIMEOUTS_SECONDS.get(self._format, _TIMEOUT_SECONDS)
        )
        self._criteria = self._parse_criteria()

    def run(self) -> int:
        """Prints the health verdict and returns the exit code."""
        from _signal import ITIMER_REAL, SIGALRM, setitimer, signal  # type: ignore[import-not-found]

        from neurontools.model import health

        signal(SIGALRM, _raise_timeout)
        setitimer(ITIMER_REAL, self._timeout_seconds)
        try:
            verdict = self._verdict()
        except CheckTimeout:
            verdict = health.unknown_verdict(f"no answer within {self._timeout_seconds:g} s")
        except UserError as error:
            verdict = health.unknown_verdict(str(error))
        if self._format == "slurm":
            from neurontools.cli.healthcheck import slurm

            line, exit_code = slurm.apply_verdict(verdict, self._given)
        else:
            from neurontools.cli.healthcheck import lines

            line, exit_code = lines.FORMATTERS[self._format](verdict)
        setitimer(ITIMER_REAL, 0)
        write_text(line + "\n")
        return exit_code

    def _verdict(self) -> "HostVerdict":
        from neurontools.model import health
        from neurontools.rpc import socket_path

        named = socket_path.configured_socket(self._given.get("socket"), os.environ)
        if named is not None:
            return self._of_daemon(named)
        verdict = ask_first_daemon(self._of_daemon, os.environ)
        if verdict is not None:
            return verdict
        from neurontools.driver.environment import Roots

        if not Roots.from_environment(os.environ).has_devices:
            return health.no_devices_verdict(self._criteria, time())
        from neurontools.cli.daemon.private import PrivateDaemon

        with PrivateDaemon(None, start_seconds=self._timeout_seconds) as daemon:
            return self._of_daemon(daemon.socket_path)

    def _of_daemon(self, path: str) -> "HostVerdict":
        """Returns the health verdict from the daemon at this socket. Raises NoDaemon if no daemon answers there."""
        from neurontools.model import health
        from neurontools.rpc import health_reply
        from neurontools.rpc.ask import ask

        reply = ask(path, health_reply.METHOD, b"", self._timeout_seconds)
        try:
            judged, at_unix_seconds, version = health_reply.read_health(reply)
        except ValueError:
            raise UserError(f"the reply of unix:{path} holds no snapshot; is something else listening there?") from None
        return health.judge_host(judged, version, at_unix_seconds, self._criteria)

    def _parse_criteria(self) -> "HealthCriteria":
        from neurontools.model import health
        from neurontools.model.finding import Severity
        from neurontools.model.health import HealthCriteria

        given = self._given
        owner_word = _parse_word(given, "problems", PROBLEMS, "node" if self._format in ("npd", "slurm") else "all")
        owners = tuple(health.Owner) if owner_word == "all" else (health.Owner(owner_word),)
        names = None
        if "only" in given:
            names = tuple(name.strip().upper() for name in given["only"].split(","))
            for name in names:
                if name not in health.FINDING_NAMES:
                    every = ", ".join(health.FINDING_NAMES)
                    raise UserError(
                        f"--only: {_excerpt(name)} is not the name of a finding; the names: {every}", EXIT_USAGE
                    )
        level = Severity[_parse_word(given, "level", LEVELS, "warning").upper()]
        return HealthCriteria(level, owners, names, _parse_device_count(given.get("expect")))


def _parse_word(given: dict[str, str], option: str, words: tuple[str, ...], default: str) -> str:
    word = given.get(option, default)
    if word not in words:
        raise UserError(f"--{option}: {_excerpt(word)} is none of {', '.join(words)}; give one of them", EXIT_USAGE)
    return word


def _parse_seconds(text: str | None, default: float) -> float:
    if text is None:
        return default
    try:
        seconds = float(text) if len(text) <= 20 else 0.0
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= _LONGEST_TIMEOUT_SECONDS:  # NaN fails too
        raise UserError(f"--timeout: {_excerpt(text)} is no time; give seconds, 0.1 to 3600", EXIT_USAGE)
    return seconds


def _parse_device_count(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= _MOST_DEVICES):
        raise UserError(f"--expect: {_excerpt(text)} is no number of devices; give 1 to {_MOST_DEVICES}", EXIT_USAGE)
    return int(text)


def _excerpt(text: str) -> str:
    from neurontools.util.terminal import error_excerpt

    return error_excerpt(text)


def _raise_timeout(_number: int, _frame: "FrameType | None") -> "NoReturn":
    raise CheckTimeout
