"""The tables of the configuration file: which keys there are, and what their values may be."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from neurontools.catalog.ultraserver import named_place
from neurontools.model import problems
from neurontools.net.sockets.listen_address import listen_address
from neurontools.net.tls.subjects import checked_name

_Path = Annotated[str, Field(min_length=1)]
_Seconds = Annotated[float, Field(allow_inf_nan=False)]


_Limit = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]


def shown(value: object) -> str:
    """A value that was given, for a line that says what is wrong with it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _listen_address(text: str) -> str:
    listen_address(text)
    return text


def _ultraserver_place(text: str) -> str:
    named_place(text)
    return text


def _host_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,253}", text):
        raise ValueError(f"{shown(text)} is no name; write one without a port, such as metrics.example.org")
    return text


def _http_url(text: str) -> str:
    if not re.match(r"https?://[^\s/]+", text):
        raise ValueError(f"{shown(text)} is no URL; write one such as http://127.0.0.1:4318")
    return text


def _argument(text: str) -> str:
    if not 0 < len(text) <= 4096 or "\0" in text:
        raise ValueError("a program and its arguments have 1 to 4096 characters each, and none of them is NUL")
    return text


def _problem_name(text: str) -> str:
    if text not in problems.NAMES:
        raise ValueError(f"{shown(text)} is no name of a problem; neuron-healthcheck(8) has the names")
    return text


_Argument = Annotated[str, AfterValidator(_argument)]
_ListenAddress = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_listen_address)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class DaemonTable(_Table):
    """[daemon] of the configuration file."""

    socket: Annotated[str, Field(min_length=1)] | None = None
    interval_seconds: Annotated[_Seconds, Field(ge=0.01, le=3600)] = 1.0
    history_seconds: Annotated[_Seconds, Field(ge=0, le=86_400)] = 600.0
    history_bytes: Annotated[int, Field(ge=0, le=2**31)] = 16 * 2**20
    log_level: Literal["error", "warning", "info", "debug"] = "info"
    group: Annotated[str, Field(min_length=1)] | None = None
    state_directory: _Path | None = None
    listen: _ListenAddress | None = None
    kmsg: str | None = None


class SimulateTable(_Table):
    """[simulate] of the configuration file."""

    instance_type: str | None = None
    ultraserver: Annotated[str, AfterValidator(_ultraserver_place)] | None = None
    logical_neuroncore_config: Literal[1, 2] | None = None


_Subjects = Annotated[list[Annotated[str, AfterValidator(checked_name)]], Field(min_length=1, max_length=1024)]


class TlsTable(_Table):
    """[tls] of the configuration file: the certificates of all that listens on the network, and who may see what."""

    certificate: _Path | None = None
    key: _Path | None = None
    client_ca: _Path | None = None
    summary: _Subjects | None = None
    full: _Subjects | None = None


class MetricsTable(_Table):
    """[metrics] of the configuration file."""

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
    """[web] of the configuration file."""

    enabled: bool = False
    show_commands: bool = False
    show_users: bool = False


class HealthTable(_Table):
    """[health] of the configuration file: `neurond.verdicts.thresholds.Thresholds`; 0 switches a check off."""

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
        """The thresholds that were set, None for those switched off."""
        return {name: getattr(self, name) or None for name in self.model_fields_set}


class LoadTable(_Table):
    """[load] of the configuration file."""

    scenario: Literal["idle", "steady", "training-ramp", "memory-leak", "stuck-core", "ecc-burst"] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    neuroncores: Annotated[int, Field(ge=1, le=1024)] | None = None


class SysfsTable(_Table):
    """[sysfs] of the configuration file: where the driver is read."""

    root: _Path = "/sys"
    proc_root: _Path = "/proc"
    dev_root: _Path = "/dev"
    imds: bool = False
    time_in_use_unit: Literal["auto", "us", "ns", "ps"] = "auto"


class ExportTable(_Table):
    """[export] of the configuration file."""

    sysfs: Annotated[str, Field(min_length=1)] | None = None
    driver_version: Annotated[str, Field(pattern=r"^\d{1,6}(\.\d{1,6}){1,4}$")] = "2.30.2.0"
    kernel_log: Annotated[str, Field(min_length=1)] | None = None


class KubernetesTable(_Table):
    """[kubernetes] of the configuration file."""

    pod_resources_socket: _Path = "/var/lib/kubelet/pod-resources/kubelet.sock"


class ActionsTable(_Table):
    """[actions] of the configuration file; without a command and a webhook nothing is done."""

    command: Annotated[list[_Argument], Field(min_length=1, max_length=64)] | None = None
    webhook: Annotated[str, Field(max_length=2048), AfterValidator(_http_url)] | None = None
    on: Annotated[list[Literal["begins", "ends"]], Field(min_length=1)] = ["begins", "ends"]
    level: Literal["notice", "warning", "critical"] = "warning"
    problems: Literal["node", "user", "all"] = "all"
    only: list[Annotated[str, AfterValidator(_problem_name)]] = []
    timeout_seconds: Annotated[_Seconds, Field(ge=1, le=600)] = 30.0
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    most_per_hour: Annotated[int, Field(ge=1, le=3600)] = 60

    def told(self) -> dict[str, Any] | None:
        """For `neurond.actions.action_settings`; None where nothing is to be done."""
        return self.model_dump() if self.command or self.webhook else None


class Configuration(_Table):
    """The configuration file."""

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
