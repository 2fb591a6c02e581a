"""Reads the settings from flags, a TOML file and the environment, and validates them with pydantic.

Only the first stage of the daemon imports this module, because pydantic takes much memory (see `__main__`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from neurond.service.socket_files import group_id
from neurond.settings import Settings
from neurond.sources.simulated import SCENARIOS
from neurond.startup.checks import check_settings
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
from neurontools.util.errors import EXIT_USAGE, UserError

_Path = Annotated[str, Field(min_length=1)]
_Seconds = Annotated[float, Field(allow_inf_nan=False)]
_LogLevel = Literal["error", "warning", "info", "debug"]
_Limit = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]


def value_text(value: object) -> str:
    """Formats an invalid value for an error message, with at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


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


_Argument = Annotated[str, AfterValidator(_argument)]
_ListenAddress = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_listen_address)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class DaemonTable(_Table):
    """The table [daemon] of the configuration file."""

    socket: Annotated[str, Field(min_length=1)] | None = None
    interval_seconds: Annotated[_Seconds, Field(ge=0.01, le=3600)] = 1.0
    history_seconds: Annotated[_Seconds, Field(ge=0, le=86_400)] = 600.0
    history_bytes: Annotated[int, Field(ge=0, le=2**31)] = 16 * 2**20
    log_level: _LogLevel = "info"
    group: Annotated[str, Field(min_length=1)] | None = None
    state_directory: _Path | None = None
    listen: _ListenAddress | None = None
    kmsg: str | None = None


class SimulateTable(_Table):
    """The table [simulate] of the configuration file: the simulated instance."""

    instance_type: str | None = None
    ultraserver: Annotated[str, AfterValidator(_ultraserver_place)] | None = None
    logical_neuroncore_config: Literal[1, 2] | None = None


_Subjects = Annotated[list[Annotated[str, AfterValidator(checked_name)]], Field(min_length=1, max_length=1024)]


class TlsTable(_Table):
    """The table [tls] of the configuration file: certificates for all network listeners, and the roles of clients."""

    certificate: _Path | None = None
    key: _Path | None = None
    client_ca: _Path | None = None
    summary: _Subjects | None = None
    full: _Subjects | None = None


class MetricsTable(_Table):
    """The table [metrics] of the configuration file: the HTTP listener for /metrics, and the export over OTLP."""

    listen: _ListenAddress | None = None
    tls: bool = True
    tls_certificate: _Path | None = None
    tls_key: _Path | None = None
    tls_client_ca: _Path | None = None
    bearer_token_file: _Path | None = None
    hosts: list[Annotated[str, AfterValidator(_host_name)]] | None = None
    untagged_together: bool = False
    otlp_endpoint: Annotated[str, AfterValidator(_http_url)] | None = None
    otlp_interval_seconds: Annotated[_Seconds, Field(ge=1, le=3600)] = 30.0


class WebTable(_Table):
    """The table [web] of the configuration file: pages for browsers."""

    enabled: bool = False
    show_commands: bool = False
    show_users: bool = False


class HealthTable(_Table):
    """The table [health] of the configuration file: the thresholds of rules. 0 disables a rule."""

    window_seconds: Annotated[_Seconds, Field(gt=0, le=86_400)] = 300.0
    idle_seconds: _Limit = 300.0
    stuck_seconds: _Limit = 60.0
    memory_used_ratio: Annotated[float, Field(ge=0, le=1)] = 0.95
    ecc_corrected_events: Annotated[int, Field(ge=0)] = 10
    numerical_errors: Annotated[int, Field(ge=0)] = 1
    hardware_errors: Annotated[int, Field(ge=0)] = 1
    latency_growth_ratio: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.5
    silent_seconds: _Limit = 30.0

    def changed(self) -> dict[str, float | None]:
        """Returns the thresholds that the file sets. None stands for a disabled rule."""
        return {name: getattr(self, name) or None for name in self.model_fields_set}


class LoadTable(_Table):
    """The table [load] of the configuration file: the synthetic load."""

    scenario: Annotated[str, AfterValidator(_scenario)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    neuroncores: Annotated[int, Field(ge=1, le=1024)] | None = None


class SysfsTable(_Table):
    """The table [sysfs] of the configuration file: where and how to read the driver's files."""

    root: _Path = "/sys"
    proc_root: _Path = "/proc"
    dev_root: _Path = "/dev"
    imds: bool = False
    time_in_use_unit: Literal["auto", "us", "ns", "ps"] = "auto"


class ExportTable(_Table):
    """The table [export] of the configuration file: sysfs tree and kernel log of a simulated host."""

    sysfs: Annotated[str, Field(min_length=1)] | None = None
    driver_version: Annotated[str, Field(pattern=r"^\d{1,6}(\.\d{1,6}){1,4}$")] = "2.30.2.0"
    kernel_log: Annotated[str, Field(min_length=1)] | None = None


class KubernetesTable(_Table):
    """The table [kubernetes] of the configuration file: the kubelet's socket."""

    pod_resources_socket: _Path = "/var/lib/kubelet/pod-resources/kubelet.sock"


class ActionsTable(_Table):
    """The table [actions] of the configuration file. Actions need a command or a webhook."""

    command: Annotated[list[_Argument], Field(min_length=1, max_length=64)] | None = None
    webhook: Annotated[str, Field(max_length=2048), AfterValidator(_http_url)] | None = None
    on: Annotated[list[Literal["begins", "ends"]], Field(min_length=1)] = ["begins", "ends"]
    level: Literal["notice", "warning", "critical"] = "warning"
    problems: Literal["node", "user", "all"] = "all"
    only: list[Annotated[str, AfterValidator(_problem_name)]] = []
    timeout_seconds: Annotated[_Seconds, Field(ge=1, le=600)] = 30.0
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    most_per_hour: Annotated[int, Field(ge=1, le=3600)] = 60

    def enabled_settings(self) -> dict[str, Any] | None:
        """Returns the values for `neurond.actions.ActionSettings`. None if there is neither a command nor a webhook."""
        return self.model_dump() if self.command or self.webhook else None


class DaemonConfiguration(_Table):
    """All tables of the configuration file."""

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


STATE_DIRECTORY = "STATE_DIRECTORY"  # set by systemd for StateDirectory= (systemd.exec(5))
_MOST_BYTES = 2**20
LOG_LEVELS: tuple[str, ...] = get_args(_LogLevel)


def resolve_settings(
    flags: Mapping[str, Mapping[str, Any]], file: str | None, environment: Mapping[str, str]
) -> Settings:
    """Merges the settings: flags override the environment, the environment overrides the file.

    `flags` has the same tables and keys as the file. Raises UserError with the name of an invalid flag or key.
    """
    written = {} if file is None else read_toml(file)
    _validated(written, lambda path: _place(file or "", path))
    given = {table: {**written.get(table, {}), **flags.get(table, {})} for table in _TABLES}
    configuration = _validated(given, lambda path: FLAGS[".".join(path)])  # the file is valid, so an error is in a flag
    daemon, simulate, load = configuration.daemon, configuration.simulate, configuration.load
    if load.scenario and not simulate.instance_type:
        raise UserError("--load needs simulated devices; add --simulate TYPE", EXIT_USAGE)
    if simulate.ultraserver is not None and not simulate.instance_type:
        raise UserError("--ultraserver needs simulated devices; add --simulate TYPE", EXIT_USAGE)
    for flag, wanted in (
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
    try:
        lnc = simulate.logical_neuroncore_config or logical_neuroncore_config(environment)
    except InvalidCoreRequest as error:
        raise UserError(str(error), EXIT_USAGE) from None
    if daemon.group is not None:
        group_id(daemon.group)

    metrics, tls = configuration.metrics, configuration.tls

    def root_of(key: str, variable: str) -> str:
        given = flags.get("sysfs", {}).get(key) or environment.get(variable) or getattr(configuration.sysfs, key)
        return str(Path(given).absolute())

    settings = Settings(
        socket=_socket(flags, daemon, environment, file),
        interval_seconds=daemon.interval_seconds,
        history_seconds=daemon.history_seconds,
        history_bytes=daemon.history_bytes,
        log_level=daemon.log_level,
        group=daemon.group,
        state_directory=_absolute(
            daemon.state_directory or environment.get(STATE_DIRECTORY, "").partition(":")[0] or None
        ),
        actions=configuration.actions.enabled_settings(),
        kmsg=_absolute(daemon.kmsg) if daemon.kmsg else daemon.kmsg,
        listen=daemon.listen,
        tls_certificate=_absolute(tls.certificate),
        tls_key=_absolute(tls.key),
        tls_client_ca=_absolute(tls.client_ca),
        tls_summary=tls.summary,
        tls_full=tls.full,
        metrics_listen=metrics.listen,
        metrics_tls=metrics.tls,
        metrics_tls_certificate=_absolute(metrics.tls_certificate),
        metrics_tls_key=_absolute(metrics.tls_key),
        metrics_tls_client_ca=_absolute(metrics.tls_client_ca),
        metrics_bearer_token_file=_absolute(metrics.bearer_token_file),
        metrics_hosts=metrics.hosts,
        web=configuration.web.enabled,
        web_shows_commands=configuration.web.show_commands,
        web_shows_users=configuration.web.show_users,
        metrics_untagged_together=metrics.untagged_together,
        otlp_endpoint=metrics.otlp_endpoint,
        otlp_interval_seconds=metrics.otlp_interval_seconds,
        health_thresholds=configuration.health.changed(),
        simulate=_known_instance_type(simulate.instance_type, lnc),
        ultraserver=simulate.ultraserver,
        lnc=lnc,
        load=load.scenario,
        load_seed=load.seed,
        load_neuroncores=load.neuroncores,
        sysfs_root=root_of("root", SYSFS_ROOT),
        proc_root=root_of("proc_root", PROC_ROOT),
        dev_root=root_of("dev_root", DEV_ROOT),
        imds=configuration.sysfs.imds,
        time_in_use_unit=None
        if configuration.sysfs.time_in_use_unit == "auto"
        else configuration.sysfs.time_in_use_unit,
        export_sysfs=_absolute(configuration.export.sysfs),
        export_driver_version=configuration.export.driver_version,
        export_kernel_log=_absolute(configuration.export.kernel_log),
        pod_resources_socket=str(Path(configuration.kubernetes.pod_resources_socket).absolute()),
    )
    check_settings(settings)
    return settings


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


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


_TABLES = tuple(DaemonConfiguration.model_fields)

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


def _socket(
    flags: Mapping[str, Mapping[str, Any]], daemon: DaemonTable, environment: Mapping[str, str], file: str | None
) -> str:
    named = socket_path.configured_socket(flags.get("daemon", {}).get("socket"), environment)
    if named is not None:
        return named
    if daemon.socket is not None:
        return socket_path.validate_socket_path(daemon.socket, f"{file}: daemon.socket")
    return socket_path.default_socket(environment)


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
