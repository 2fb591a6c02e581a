"""The validated settings of a daemon, which its first stage passes to the second as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one daemon. `neurond.startup.configuration` reads and validates them."""

    socket: str
    interval_seconds: float = 1.0
    history_seconds: float = 600.0
    history_bytes: int = 16 * 2**20
    log_level: str = "info"
    state_directory: str | None = None  # directory of the log of ended processes and the audit log; None: memory only
    group: str | None = None  # group that may use the sockets; None: only this user
    simulate: str | None = None  # instance type; None: the host's own devices
    ultraserver: str | None = None  # NAME:INDEX: the UltraServer and the node index of the simulated instance
    lnc: int | None = None  # None: NEURON_LOGICAL_NC_CONFIG, else the default of the instance type
    load: str | None = None  # scenario of synthetic load
    load_seed: int = 0
    load_neuroncores: int | None = None  # logical cores the scenario uses; None: all
    listen: str | None = None  # address of the API over TLS; None: only the socket
    tls_certificate: str | None = None  # PEM file for all network listeners; None: no TLS
    tls_key: str | None = None  # None: in the certificate file
    tls_client_ca: str | None = None  # CAs of client certificates; None: clients need no certificate
    tls_summary: list[str] | None = None  # certificate names that see no commands and users
    tls_full: list[str] | None = None  # certificate names that see everything
    metrics_listen: str | None = None  # address of the HTTP listener for /metrics; None: no listener
    metrics_tls: bool = True  # False: plain HTTP in spite of certificates, only on a loopback address
    metrics_tls_certificate: str | None = None  # PEM file for the listener; None: tls_certificate, or plain HTTP
    metrics_tls_key: str | None = None  # None: in the certificate file
    metrics_tls_client_ca: str | None = None  # CAs of client certificates; None: clients need no certificate
    metrics_bearer_token_file: str | None = None  # token that clients must send; None: no token
    metrics_hosts: list[str] | None = None  # host names for requests, besides the host's own; None: any
    web: bool = False  # pages for browsers, on the metrics listener
    web_shows_commands: bool = False
    web_shows_users: bool = False
    metrics_untagged_together: bool = False  # one runtime_tag for all processes without a tag, instead of their PIDs
    otlp_endpoint: str | None = None  # URL for metrics over OTLP; None: no OTLP
    otlp_interval_seconds: float = 30.0
    health_thresholds: dict[str, float | None] = field(default_factory=dict)  # changed fields of HealthThresholds
    sysfs_root: str = "/sys"
    proc_root: str = "/proc"
    dev_root: str = "/dev"
    imds: bool = False  # ask the instance metadata service for the instance's identity
    time_in_use_unit: str | None = None  # us, ns or ps; None: detect it
    export_sysfs: str | None = None  # directory for a copy of the driver's sysfs tree
    export_driver_version: str = "2.30.2.0"
    export_kernel_log: str | None = None  # kernel log file of a simulated host; None: in the exported tree, if any
    pod_resources_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    actions: dict[str, Any] | None = None  # the [actions] table; None: no actions
    kmsg: str | None = None  # kernel log to read; None: kmsg below dev_root; "": none
    ready_fd: int | None = None  # receives the line "ready" once the daemon serves
    exit_with_parent: bool = False

    def to_json(self) -> str:
        """Serializes the settings for `from_json` in another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Restores settings from `to_json`."""
        return cls(**json.loads(text))
