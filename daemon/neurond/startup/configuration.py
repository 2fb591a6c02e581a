"""Reads the settings from flags, a TOML file and the environment, and validates them with pydantic.

Only the first stage of the daemon imports this module, because pydantic takes much memory (see `__main__`).
"""

from __future__ import annotations

import argparse
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from neurond.service.socket_files import group_id
from neurond.settings import Settings
from neurond.sources.simulated import SCENARIOS
from neurond.startup import CommandParser
from neurond.startup.checks import check_settings
from neurond.system.lifecycle import exit_with_parent
from neurontools import catalog
from neurontools.catalog.facts import parse_ultraserver_place
from neurontools.driver.environment import (
    DEV_ROOT,
    PROC_ROOT,
    SYSFS_ROOT,
    InvalidCoreRequest,
    logical_neuroncore_config,
)
from neurontools.model import health
from neurontools.net.acceptor import listen_address
from neurontools.net.tls import checked_name
from neurontools.rpc import socket_path
from neurontools.util.command_lifecycle import exit_code_text, write_text
from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.version import __version__

_Seconds = Annotated[float, Field(allow_inf_nan=False)]
_LogLevel = Literal["error", "warning", "info", "debug"]
_Limit = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]


def value_text(value: object) -> str:
    """Formats an invalid value for an error message, with at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _absolute(path: str) -> str:
    return str(Path(path).absolute())


def _listen_address(text: str) -> str:
    listen_address(text)
    return text


def _ultraserver_place(text: str) -> str:
    parse_ultraserver_place(text)
    return text


def _host_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,253}", text):
        raise ValueError(
            f"{value_text(text)} is not a host name; write one without a port, such as metrics.example.org"
        )
    return text


def _http_url(text: str) -> str:
    if not re.match(r"https?://[^\s/]+", text):
        raise ValueError(f"{value_text(text)} is not a URL; write one such as http://127.0.0.1:4318")
    return text


def _otlp_endpoint(text: str) -> str:
    address = _http_url(text).partition("://")[2]
    if "@" in address.partition("/")[0] or "?" in address:
        raise ValueError(
            "a URL with a login or a query may contain a secret; put the secret into the environment variable "
            "OTEL_EXPORTER_OTLP_HEADERS of the service"
        )
    return text


def _refuse_webhook(_: str | None) -> str | None:
    raise ValueError(
        "a URL may contain a secret; write it into a file that others cannot read, and name the file in "
        "actions.webhook_url_file"
    )


def _argument(text: str) -> str:
    if not 0 < len(text) <= 4096 or "\0" in text:
        raise ValueError("a program and its arguments have 1 to 4096 characters each, and none of them is NUL")
    return text


def _scenario(text: str) -> str:
    if text not in SCENARIOS:
        raise ValueError(f"{value_text(text)} is not a scenario; give one of {', '.join(SCENARIOS)}")
    return text


def _problem_name(text: str) -> str:
    if text not in health.FINDING_NAMES:
        raise ValueError(f"{value_text(text)} is not the name of a finding; neuron-healthcheck(8) has the names")
    return text


_Path = Annotated[str, Field(min_length=1), AfterValidator(_absolute)]
_Argument = Annotated[str, AfterValidator(_argument)]
_ListenAddress = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_listen_address)]


class _Table(BaseModel):
    """One table of the configuration file, or the whole file."""

    model_config = ConfigDict(extra="forbid", strict=True)


class DaemonTable(_Table):
    socket: Annotated[str, Field(min_length=1)] | None = None
    interval_seconds: Annotated[_Seconds, Field(ge=0.01, le=3600)] = 1.0
    history_seconds: Annotated[_Seconds, Field(ge=0, le=86_400)] = 600.0
    history_bytes: Annotated[int, Field(ge=0, le=2**31)] = 16 * 2**20
    log_level: _LogLevel = "info"
    group: Annotated[str, Field(min_length=1)] | None = None
    state_directory: _Path | None = None
    listen: _ListenAddress | None = None
    kmsg: Annotated[str, AfterValidator(lambda path: path and _absolute(path))] | None = None
    kmsg_user_records: bool = False
    device_max_watts: Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)] | None = None


class SimulateTable(_Table):
    instance_type: str | None = None
    ultraserver: Annotated[str, AfterValidator(_ultraserver_place)] | None = None
    logical_neuroncore_config: Literal[1, 2] | None = None


_Subjects = Annotated[list[Annotated[str, AfterValidator(checked_name)]], Field(min_length=1, max_length=1024)]


class TlsTable(_Table):
    certificate: _Path | None = None
    key: _Path | None = None
    client_ca: _Path | None = None
    client_crl: _Path | None = None
    summary: _Subjects | None = None
    full: _Subjects | None = None


class MetricsTable(_Table):
    listen: _ListenAddress | None = None
    tls: bool = True
    tls_certificate: _Path | None = None
    tls_key: _Path | None = None
    tls_client_ca: _Path | None = None
    tls_client_crl: _Path | None = None
    bearer_token_file: _Path | None = None
    hosts: list[Annotated[str, AfterValidator(_host_name)]] | None = None
    untagged_together: bool = False
    otlp_endpoint: Annotated[str, AfterValidator(_otlp_endpoint)] | None = None
    otlp_interval_seconds: Annotated[_Seconds, Field(ge=1, le=3600)] = 30.0


class WebTable(_Table):
    enabled: bool = False
    show_commands: bool | None = None  # None: shown if only this host reaches the pages
    show_users: bool | None = None


class HealthTable(_Table):
    """The table [health] of the configuration file: the thresholds of rules. 0 disables a rule."""

    window_seconds: Annotated[_Seconds, Field(gt=0, le=86_400)] = 300.0
    idle_seconds: _Limit = 300.0
    stuck_seconds: _Limit = 60.0
    memory_used_ratio: Annotated[float, Field(ge=0, le=1)] = 0.95
    ecc_corrected_events: Annotated[int, Field(ge=0)] = 10
    numerical_errors: Annotated[int, Field(ge=0)] = 1
    hardware_errors: Annotated[int, Field(ge=0)] = 1
    failed_executions: Annotated[int, Field(ge=0)] = 1
    latency_growth_ratio: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.5
    silent_seconds: _Limit = 15.0

    def changed(self) -> dict[str, float | None]:
        """Returns the thresholds that the file sets. None stands for a disabled rule."""
        return {name: getattr(self, name) or None for name in self.model_fields_set}


class LoadTable(_Table):
    scenario: Annotated[str, AfterValidator(_scenario)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    neuroncores: Annotated[int, Field(ge=1, le=1024)] | None = None


class SysfsTable(_Table):
    root: _Path = "/sys"
    proc_root: _Path = "/proc"
    dev_root: _Path = "/dev"
    imds: bool = False
    time_in_use_unit: Literal["auto", "us", "ns", "ps"] = "auto"


class ExportTable(_Table):
    sysfs: _Path | None = None
    driver_version: Annotated[str, Field(pattern=r"^\d{1,6}(\.\d{1,6}){1,4}$")] = "2.30.2.0"
    kernel_log: _Path | None = None


class KubernetesTable(_Table):
    pod_resources_socket: _Path = "/var/lib/kubelet/pod-resources/kubelet.sock"


class ActionsTable(_Table):
    """The table [actions] of the configuration file. Actions need a command or a webhook."""

    command: Annotated[list[_Argument], Field(min_length=1, max_length=64)] | None = None
    webhook: Annotated[str | None, Field(exclude=True), AfterValidator(_refuse_webhook)] = None  # an earlier key
    webhook_url_file: _Path | None = None
    on: Annotated[list[Literal["begins", "ends"]], Field(min_length=1)] = ["begins", "ends"]
    level: Literal["notice", "warning", "critical"] = "warning"
    problems: Literal["node", "user", "all"] = "all"
    only: list[Annotated[str, AfterValidator(_problem_name)]] = []
    timeout_seconds: Annotated[_Seconds, Field(ge=1, le=600)] = 30.0
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    most_per_hour: Annotated[int, Field(ge=1, le=3600)] = 60

    def enabled_settings(self) -> dict[str, Any] | None:
        """Returns the values for `neurond.actions.ActionSettings`. None if there is neither a command nor a webhook."""
        return self.model_dump() if self.command or self.webhook_url_file else None


class DaemonConfiguration(_Table):
    daemon: DaemonTable = DaemonTable()
    tls: TlsTable = TlsTable()
    metrics: MetricsTable = MetricsTable()
    web: WebTable = WebTable()
    health: HealthTable = HealthTable()
    simulate: SimulateTable = SimulateTable()
    load: LoadTable = LoadTable()
    sysfs: SysfsTable = SysfsTable()
    export: ExportTable = ExportTable()
    kubernetes: KubernetesTable = KubernetesTable()
    actions: ActionsTable = ActionsTable()


_ROOTS = {"root": SYSFS_ROOT, "proc_root": PROC_ROOT, "dev_root": DEV_ROOT}  # [sysfs] key -> environment variable
STATE_DIRECTORY = "STATE_DIRECTORY"  # systemd sets this variable for StateDirectory= (systemd.exec(5))
_MOST_BYTES = 2**20
LOG_LEVELS: tuple[str, ...] = get_args(_LogLevel)


Tables = Mapping[str, Mapping[str, Any]]
"""Values by table and key of the configuration file."""


def resolve_settings(flags: Tables, file: str | None, environment: Mapping[str, str]) -> Settings:
    """Merges the settings: flags override the environment, the environment overrides the file.

    `flags` has the same tables and keys as the file. Raises UserError with the name of an invalid flag or key.
    """
    written = {} if file is None else read_toml(file)
    _validated(written, lambda path: _place(file or "", path))
    roots = {key: environment[name] for key, name in _ROOTS.items() if environment.get(name)}
    given = {
        table: written.get(table, {}) | (roots if table == "sysfs" else {}) | flags.get(table, {})
        for table in DaemonConfiguration.model_fields
    }
    configuration = _validated(given, lambda path: FLAGS[".".join(path)])  # the file is valid, so an error is in a flag
    daemon, simulate, load = configuration.daemon, configuration.simulate, configuration.load
    for flag, wanted in (
        ("--load", load.scenario),
        ("--ultraserver", simulate.ultraserver),
        ("--export-sysfs", configuration.export.sysfs),
        ("--export-kernel-log", configuration.export.kernel_log),
    ):
        if wanted and not simulate.instance_type:
            raise UserError(f"{flag} needs simulated devices; add --simulate TYPE", EXIT_USAGE)
    if written.get("simulate", {}).get("instance_type") and written.get("sysfs"):
        raise UserError(f"{file}: simulate.instance_type excludes [sysfs]; leave one out", EXIT_USAGE)
    if simulate.instance_type and flags.get("sysfs"):
        raise UserError(
            "--simulate excludes --sysfs-root, --proc-root, --dev-root and --imds; leave one out", EXIT_USAGE
        )
    for key in flags.get("load", {}) if load.scenario is None else ():
        raise UserError(f"{FLAGS[f'load.{key}']} has no effect without a load; add --load SCENARIO", EXIT_USAGE)
    try:
        lnc = simulate.logical_neuroncore_config or logical_neuroncore_config(environment)
    except InvalidCoreRequest as error:
        raise UserError(str(error), EXIT_USAGE) from None
    if daemon.group is not None:
        group_id(daemon.group)

    metrics, sysfs = dict(configuration.metrics), configuration.sysfs
    state_directory = daemon.state_directory or environment.get(STATE_DIRECTORY, "").partition(":")[0]
    settings = Settings(
        **dict(daemon)
        | {
            "socket": _socket(flags, daemon, environment, file),
            "state_directory": _absolute(state_directory) if state_directory else None,
        },
        **{f"tls_{key}": value for key, value in configuration.tls},
        **{key: metrics.pop(key) for key in ("otlp_endpoint", "otlp_interval_seconds")},
        **{f"metrics_{key}": value for key, value in metrics.items()},
        web=configuration.web.enabled,
        web_shows_commands=_is_shown(configuration.web.show_commands, configuration),
        web_shows_users=_is_shown(configuration.web.show_users, configuration),
        actions=configuration.actions.enabled_settings(),
        health_thresholds=configuration.health.changed(),
        simulate=_known_instance_type(simulate.instance_type, lnc),
        ultraserver=simulate.ultraserver,
        lnc=lnc,
        load=load.scenario,
        load_seed=load.seed,
        load_neuroncores=load.neuroncores,
        sysfs_root=sysfs.root,
        proc_root=sysfs.proc_root,
        dev_root=sysfs.dev_root,
        imds=sysfs.imds,
        time_in_use_unit=None if sysfs.time_in_use_unit == "auto" else sysfs.time_in_use_unit,
        **{f"export_{key}": value for key, value in configuration.export},
        pod_resources_socket=configuration.kubernetes.pod_resources_socket,
    )
    check_settings(settings)
    return settings


def read_toml(file: str) -> dict[str, Any]:
    """Reads the tables of a TOML file. Raises UserError if the file is unreadable, too large or invalid."""
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise UserError(f"{file}: larger than {_MOST_BYTES >> 20} MiB; give a file of settings", EXIT_USAGE)
        return tomllib.loads(content.decode())
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; give a readable file with --config", EXIT_USAGE) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{file}: not TOML: {error}", EXIT_USAGE) from None


# Keys of the configuration file, with the flags that override them.
FLAGS = {
    "daemon.socket": "--socket",
    "daemon.group": "--group",
    "daemon.state_directory": "--state-directory",
    "daemon.kmsg": "--kmsg",
    "daemon.listen": "--listen",
    "daemon.interval_seconds": "--interval",
    "daemon.history_seconds": "--history",
    "daemon.log_level": "--log-level",
    "daemon.device_max_watts": "--device-max-watts",
    "metrics.listen": "--metrics-listen",
    "metrics.otlp_endpoint": "--otlp-endpoint",
    "web.enabled": "--web",
    "simulate.instance_type": "--simulate",
    "simulate.logical_neuroncore_config": "--lnc",
    "simulate.ultraserver": "--ultraserver",
    "load.scenario": "--load",
    "load.seed": "--seed",
    "load.neuroncores": "--load-neuroncores",
    "sysfs.root": "--sysfs-root",
    "sysfs.proc_root": "--proc-root",
    "sysfs.dev_root": "--dev-root",
    "sysfs.imds": "--imds",
    "export.sysfs": "--export-sysfs",
    "export.driver_version": "--export-driver-version",
    "export.kernel_log": "--export-kernel-log",
}


def _validated(tables: Mapping[str, Any], place: Callable[[list[str]], str]) -> DaemonConfiguration:
    try:
        return DaemonConfiguration.model_validate(tables)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        path = [part for part in problem["loc"] if isinstance(part, str)]  # leaves out list indices
        raise UserError(f"{place(path)}: {_cause(problem)}", EXIT_USAGE) from None


def _cause(problem: Mapping[str, Any]) -> str:
    if problem["type"] == "extra_forbidden":
        return "there is no such key; see neurond(8) for the keys"
    if problem["type"] == "value_error":  # raised by a validator above, with a complete message
        return str(problem["ctx"]["error"])
    message = problem["msg"][:1].lower() + problem["msg"][1:]
    if problem["type"] in ("model_type", "dataclass_type", "dict_type"):
        message = "input should be a table"
    given = problem.get("input")
    return message if given is None or isinstance(given, dict) else f"{message}, not {value_text(given)}"


def _place(file: str, path: list[str]) -> str:
    """Returns "file:line: table.key". Leaves the line out for a dotted key or an inline table."""
    table = ""
    for number, line in enumerate(Path(file).read_text("utf-8").splitlines(), 1):
        text = line.strip()
        if text.startswith("["):
            table = text.strip("[ ").partition("]")[0].strip()
            if path == [table]:
                return f"{file}:{number}: {table}"
        elif text.split("=")[0].strip() == path[-1] and path[:-1] == ([table] if table else []):
            return f"{file}:{number}: {'.'.join(path)}"
    return f"{file}: {'.'.join(path)}"


def _socket(flags: Tables, daemon: DaemonTable, environment: Mapping[str, str], file: str | None) -> str:
    named = socket_path.configured_socket(flags.get("daemon", {}).get("socket"), environment)
    if named is not None:
        return named
    if daemon.socket is not None:
        return socket_path.validate_socket_path(daemon.socket, f"{file}: daemon.socket")
    return socket_path.validate_socket_path(socket_path.default_socket(environment), "XDG_RUNTIME_DIR")


def _known_instance_type(name: str | None, lnc: int | None) -> str | None:
    if name is None:
        return None
    try:
        catalog.load(name).family.checked_lnc(lnc)
    except catalog.UnknownInstanceType as error:
        raise UserError(str(error), EXIT_USAGE) from None
    except ValueError as error:
        raise UserError(f"{name}: {error}", EXIT_USAGE) from None
    return name


EXIT_CODES = (
    (0, "a signal ended the daemon, or the requested text was printed"),
    (1, "there are no devices, another daemon serves the socket, or something failed"),
    (2, "an option or the configuration is invalid"),
    (4, "the socket can't be created at its path"),
    (70, "a defect of the command"),
    (130, "interrupted before the daemon was ready"),
)


class _Formatter(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def parser() -> argparse.ArgumentParser:
    scenarios = "; ".join(f"{name}: {scenario.summary}" for name, scenario in SCENARIOS.items()).replace("%", "%%")
    parser = CommandParser(
        prog="neurond",
        description="Serves the state of the Neuron devices of this host, or of a simulated instance, over gRPC.",
        epilog=exit_code_text(EXIT_CODES),
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.add_completion()
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
    add(
        "--device-max-watts",
        metavar="WATTS",
        type=float,
        help="maximum power of a device, to show watts and kWh; simulated devices then have a simulated power",
    )
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
        try:
            os.set_inheritable(given.ready_fd, True)
        except (OSError, OverflowError):
            raise UserError(f"--ready-fd {given.ready_fd}: not an open file descriptor", EXIT_USAGE) from None
    if given.exit_with_parent:
        exit_with_parent(parent_pid)
    return replace(settings, ready_fd=given.ready_fd, exit_with_parent=given.exit_with_parent)


def _tables(given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Returns the given flags as tables of the configuration file. A switch that is not given is False."""
    tables: dict[str, dict[str, Any]] = {}
    for place, flag in FLAGS.items():
        value = getattr(given, flag.removeprefix("--").replace("-", "_"))
        if value is not None and value is not False:
            table, _, key = place.partition(".")
            tables.setdefault(table, {})[key] = value
    return tables


def _is_shown(setting: bool | None, configuration: DaemonConfiguration) -> bool:
    """Returns the setting, or its default, which depends on the hosts that reach the pages."""
    metrics = configuration.metrics
    if setting is not None or metrics.listen is None or not configuration.web.enabled:
        return bool(setting)
    from neurontools.web.privacy_filter import shows_by_default  # not needed without pages

    return shows_by_default(listen_address(metrics.listen)[0], metrics.hosts)
