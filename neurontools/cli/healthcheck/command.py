"""`neuron-healthcheck`: prints the findings of the monitor daemon as one line.

Monitoring tools run it every few seconds, so it must start fast: it uses no protobuf, and imports most modules late.

The node problem detector takes exit code 0 for healthy, 1 for unhealthy and all others for unknown. It truncates
messages at a configured length (https://github.com/kubernetes/node-problem-detector, pkg/custompluginmonitor). Nagios
takes 0 for OK, 1 for WARNING, 2 for CRITICAL and 3 for UNKNOWN. The text after a vertical bar is performance data
(https://www.monitoring-plugins.org).
"""

import os
import sys
from time import time

from neurontools.cli.daemon.connection import ask_first_daemon
from neurontools.cli.line import (
    END_CODES,
    INFORMATION_OPTIONS,
    SOCKET_OPTION,
    Option,
    parse_options,
    print_information,
    seconds_option,
    whole_option,
    word_option,
)
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
    SOCKET_OPTION,
    *INFORMATION_OPTIONS,
)
USAGE = "neuron-healthcheck [options]"
SUMMARY = (
    "Prints in one line whether the Neuron devices of this host are healthy, for tools that drain, replace or alert."
)
NOTES = "The verdict comes from the findings of the monitor daemon (neurond). Without one, the devices are read once.\n"
VARIABLES = (("SLURMD_NODENAME", "the name of this node, set by slurmd"),)
EXIT_CODES = (
    (0, "the host is healthy; for Nagios also a notice; for Slurm: the actions succeeded"),
    (1, "the host is unhealthy; for Nagios a warning; for Slurm: scontrol failed"),
    (2, "the health is unknown, or an option is invalid; for Nagios: critical"),
    (3, "for Nagios: the health is unknown, or an option is invalid"),
    *END_CODES,
)


_COMMAND = "neuron-healthcheck"
_TIMEOUTS_SECONDS = {"npd": 3.0, "slurm": 40.0}
_TIMEOUT_SECONDS = 10.0
_LONGEST_TIMEOUT_SECONDS = 3600.0
_MOST_DEVICES = 1024
_OF_SLURM = ("node", "no-undrain", "dry-run")
_MOST_NPD_CHARACTERS = 500
_EXIT_CODES = {True: 0, False: 1, None: 2}
_STATUS = {True: "ok", False: "unhealthy", None: "unknown"}
_NAGIOS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")


class CheckTimeout(Exception):
    """The health check took longer than --timeout."""


def main() -> None:
    run_command(_COMMAND, _run_healthcheck)


def _run_healthcheck(arguments: list[str]) -> int:
    try:
        given = parse_options(OPTIONS, arguments)
        if print_information(_COMMAND, sys.modules[__name__], given):
            return 0
        from neurontools.util import light_imports

        light_imports.install_dataclasses()
        with light_imports.LightEnum():
            from neurontools.model import health  # noqa: F401
        return HealthCheck(given).run()
    except UserError as error:
        # Exit code 1 means an unhealthy host, so a usage error needs another code.
        typed = "=".join(arguments)  # "=" joins flag and value, so one test finds both forms
        raise UserError(str(error), EXIT_NAGIOS_UNKNOWN if "--format=nagios" in typed else EXIT_USAGE) from error


class HealthCheck:
    def __init__(self, given: dict[str, str]) -> None:
        self._given = given
        self._format = word_option(given, "format", FORMATS, "text")
        for name in _OF_SLURM:
            if name in given and self._format != "slurm":
                raise UserError(f"--{name} is for --format slurm; leave it out", EXIT_USAGE)
        usual_seconds = _TIMEOUTS_SECONDS.get(self._format, _TIMEOUT_SECONDS)
        self._timeout_seconds = seconds_option(given, "timeout", usual_seconds, 0.1, _LONGEST_TIMEOUT_SECONDS)
        self._criteria = self._parse_criteria()

    def run(self) -> int:
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
            line, exit_code = FORMATTERS[self._format](verdict)
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
        owner_word = word_option(given, "problems", PROBLEMS, "node" if self._format in ("npd", "slurm") else "all")
        owners = tuple(health.Owner) if owner_word == "all" else (health.Owner(owner_word),)
        names = None
        if "only" in given:
            names = tuple(name.strip().upper() for name in given["only"].split(","))
            for name in names:
                if name not in health.FINDING_NAMES:
                    from neurontools.util.terminal import error_excerpt

                    problem = f"{error_excerpt(name)} is not the name of a finding"
                    raise UserError(f"--only: {problem}; the names: {', '.join(health.FINDING_NAMES)}", EXIT_USAGE)
        level = Severity[word_option(given, "level", LEVELS, "warning").upper()]
        return HealthCriteria(level, owners, names, whole_option(given, "expect", None, 1, _MOST_DEVICES))


def _raise_timeout(_number: int, _frame: "FrameType | None") -> "NoReturn":
    raise CheckTimeout


def _text_verdict(verdict: "HostVerdict") -> tuple[str, int]:
    """Formats a verdict: "critical: device 3: REASON; ACTION (and 1 more)" or "ok: all 16 devices are healthy"."""
    from neurontools.util.terminal import escape_controls

    return f"{verdict.severity_word}: {escape_controls(verdict.sentence)}", _EXIT_CODES[verdict.is_healthy]


def _json_verdict(verdict: "HostVerdict") -> tuple[str, int]:
    from neurontools.model import health
    from neurontools.util.formats import json_text

    answer = {
        "status": _STATUS[verdict.is_healthy],
        "healthy": verdict.is_healthy,
        "severity": None if verdict.severity is None else verdict.severity.name.lower(),
        "devices": verdict.device_count,
        "summary": verdict.sentence,
        "findings": [health.describe_finding(finding) for finding in verdict.findings],
    }
    return json_text(answer), _EXIT_CODES[verdict.is_healthy]


def _npd_verdict(verdict: "HostVerdict") -> tuple[str, int]:
    from neurontools.model import health
    from neurontools.util.terminal import excerpt

    if verdict.is_healthy:
        return "Neuron has no error", 0
    prefix = "Neuron health is not known: "
    if verdict.findings:
        prefix = f"NeuronHasError_{health.finding_name(verdict.findings[0])}: "  # format of AWS's node problem detector
    return excerpt(prefix + verdict.sentence, _MOST_NPD_CHARACTERS), _EXIT_CODES[verdict.is_healthy]


def _nagios_verdict(verdict: "HostVerdict") -> tuple[str, int]:
    from neurontools.model.finding import Severity
    from neurontools.util.terminal import escape_controls

    severity = verdict.severity
    exit_code = EXIT_NAGIOS_UNKNOWN if severity is None else max(0, severity - Severity.NOTICE)
    devices = verdict.device_count
    counts = "" if devices is None else f" | devices={devices} findings={len(verdict.findings)}"
    return f"NEURON {_NAGIOS[exit_code]} - {escape_controls(verdict.sentence).replace('|', '/')}{counts}", exit_code


FORMATTERS = {"text": _text_verdict, "json": _json_verdict, "npd": _npd_verdict, "nagios": _nagios_verdict}
"""Functions by format. Each returns the line and the exit code of a verdict. The slurm format is not one of them."""
