"""Parses the command-line flags of `neurond`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from neurond.settings import Settings
from neurond.sources.simulated import SCENARIOS
from neurond.startup.configuration import LOG_LEVELS, resolve_settings
from neurond.system.lifecycle import exit_with_parent
from neurontools import catalog
from neurontools.util.command_lifecycle import exit_code_text, write_text
from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.version import __version__

EXIT_CODES = (
    (0, "a signal ended the daemon, or the requested text was printed"),
    (1, "there are no devices, another daemon serves the socket, or something failed"),
    (2, "an option or the configuration is invalid"),
    (4, "the socket can't be created at its path"),
    (70, "a defect of the command"),
    (130, "interrupted before the daemon was ready"),
)


class _Formatter(argparse.HelpFormatter):
    """A help formatter that keeps the line breaks of the list of exit codes."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser that reports an error in one line, with a pointer to --help."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see neurond --help", EXIT_USAGE)

    def print_help(self, file: object = None) -> None:  # noqa: ARG002
        """Writes the help through `write_text`, like all other output of the command."""
        write_text(self.format_help())


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all flags. `--help` and the manual page show the same flags."""
    scenarios = "; ".join(f"{name}: {scenario.summary}" for name, scenario in SCENARIOS.items()).replace("%", "%%")
    parser = _Parser(
        prog="neurond",
        description="Serves the state of the Neuron devices of this host, or of a simulated instance, over gRPC.",
        epilog=exit_code_text(EXIT_CODES),
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--simulate", metavar="TYPE", help="simulate an instance of this type, such as trn1.32xlarge")
    add(
        "--ultraserver",
        metavar="NAME:INDEX",
        help="make the simulated instance this node of an UltraServer, such as us-1:0; for trn2u and trn3 types",
    )
    add(
        "--lnc",
        type=int,
        choices=(1, 2),
        help="logical NeuronCore configuration; default: NEURON_LOGICAL_NC_CONFIG, else that of the instance type",
    )
    add("--load", metavar="SCENARIO", choices=tuple(SCENARIOS), help=f"run a synthetic load ({scenarios})")
    add("--load-neuroncores", metavar="N", type=int, help="NeuronCores the load uses; default: all")
    add("--seed", metavar="N", type=int, help="seed of the load; the same seed gives the same load")
    add(
        "--socket",
        metavar="PATH",
        help="socket to serve on; default: NEURONTOOLS_SOCKET, else "
        "$XDG_RUNTIME_DIR/neurontools/neurond.sock, else /run/neurond/neurond.sock for root",
    )
    add("--group", help="let the members of this group use the sockets")
    add(
        "--state-directory",
        metavar="DIR",
        help="keep the log of ended processes in this directory; default: STATE_DIRECTORY, else only in memory",
    )
    add(
        "--kmsg",
        metavar="FILE",
        help="read the kernel's log from this file or FIFO; default: kmsg next to the device files, if it is "
        "readable; an empty name disables it",
    )
    add("--interval", metavar="SECONDS", type=float, help="time between two snapshots; default: 1")
    add("--history", metavar="SECONDS", type=float, help="how many seconds of the past to keep; default: 600")
    add(
        "--listen",
        metavar="ADDRESS",
        help="also serve the API over TLS on this address, such as :8001, to the certificates that [tls] of the "
        "configuration names; default: only on the socket",
    )
    add(
        "--metrics-listen",
        metavar="ADDRESS",
        help="serve metrics for Prometheus on this address, such as 127.0.0.1:8000 or :8000; default: off",
    )
    add("--web", action="store_true", help="also serve neuron-top's pages for browsers, at /top/ on --metrics-listen")
    add("--otlp-endpoint", metavar="URL", help="send metrics over OTLP/HTTP to this URL; needs the extra otlp")
    add("--log-level", choices=LOG_LEVELS, help="lowest level to log on stderr; default: info")
    add("--sysfs-root", metavar="DIR", help="read the driver's tree below this directory instead of /sys")
    add("--proc-root", metavar="DIR", help="look for processes below this directory instead of /proc")
    add("--dev-root", metavar="DIR", help="look for device files below this directory instead of /dev")
    add("--imds", action="store_true", help="ask the instance metadata service for the instance's identity")
    add(
        "--export-sysfs",
        metavar="DIR",
        help="export the simulated devices to this directory, as a tree like the driver's",
    )
    add("--export-driver-version", metavar="VERSION", help="driver version of the exported tree; default: 2.30.2.0")
    add("--export-kernel-log", metavar="FILE", help="append the kernel log lines of injected faults to this file")
    add("--foreground", action="store_true", help="stay in the foreground (the default; kept for service managers)")
    add("--config", metavar="FILE", help="read settings from this TOML file; flags override it")
    add("--check-config", action="store_true", help="check flags and configuration, print the outcome and exit")
    add("--list-instance-types", action="store_true", help="print the instance types that can be simulated and exit")
    add("--ready-fd", metavar="FD", type=int, help="write a line to this file descriptor when the daemon is ready")
    add("--exit-with-parent", action="store_true", help="end when the process that started the daemon ends")
    add("--version", action="store_true", help="print the version and exit")
    return parser


def settings_from(arguments: Sequence[str]) -> Settings | None:
    """Returns the settings; None after writing the output that a flag such as --version requests."""
    parent_pid = os.getppid()
    given = parser().parse_args(arguments)
    if given.version:
        write_text(f"neurond {__version__}\n")
        return None
    if given.list_instance_types:
        write_text("\n".join((*catalog.names(), "")))
        return None
    settings = resolve_settings(_tables(given), given.config, os.environ)
    if given.check_config:
        write_text(f"configuration is valid: {settings.to_json()}\n")
        return None
    if given.ready_fd is not None:
        _make_inheritable(given.ready_fd)
    if given.exit_with_parent:
        exit_with_parent(parent_pid)
    return replace(settings, ready_fd=given.ready_fd, exit_with_parent=given.exit_with_parent)


def _tables(given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = {
        "daemon": {
            "socket": given.socket,
            "group": given.group,
            "state_directory": given.state_directory,
            "kmsg": given.kmsg,
            "listen": given.listen,
            "interval_seconds": given.interval,
            "history_seconds": given.history,
            "log_level": given.log_level,
        },
        "metrics": {"listen": given.metrics_listen, "otlp_endpoint": given.otlp_endpoint},
        "web": {"enabled": given.web or None},
        "simulate": {
            "instance_type": given.simulate,
            "logical_neuroncore_config": given.lnc,
            "ultraserver": given.ultraserver,
        },
        "load": {"scenario": given.load, "seed": given.seed, "neuroncores": given.load_neuroncores},
    }
    tables["sysfs"] = {
        "root": given.sysfs_root,
        "proc_root": given.proc_root,
        "dev_root": given.dev_root,
        "imds": given.imds or None,
    }
    tables["export"] = {
        "sysfs": given.export_sysfs,
        "driver_version": given.export_driver_version,
        "kernel_log": given.export_kernel_log,
    }
    return {table: {key: value for key, value in keys.items() if value is not None} for table, keys in tables.items()}


def _make_inheritable(descriptor: int) -> None:
    try:
        os.set_inheritable(descriptor, True)
    except (OSError, OverflowError):
        raise UserError(f"--ready-fd {descriptor}: not an open file descriptor", EXIT_USAGE) from None
