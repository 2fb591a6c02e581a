"""The validated settings of the daemon. The daemon's first stage passes them as JSON to the stage that serves."""

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
    device_max_watts: float | None = None  # maximum power of a device; None: unknown
    group: str | None = None  # group that may use the sockets; None: only the daemon's user
    simulate: str | None = None  # instance type to simulate; None: the host's real devices
    ultraserver: str | None = None  # NAME:INDEX, the UltraServer and the node index of the simulated instance
    lnc: int | None = None  # physical cores per logical core; None: NEURON_LOGICAL_NC_CONFIG or the type's default
    load: str | None = None  # scenario of the synthetic load; None: no load
    load_seed: int = 0
    load_neuroncores: int | None = None  # logical cores that the synthetic load uses; None: all
    listen: str | None = None  # address of the API over TLS; None: only the Unix socket
    tls_certificate: str | None = None  # certificate file (PEM) of all network listeners; None: no TLS
    tls_key: str | None = None  # key file (PEM) of tls_certificate; None: the key is in the certificate file
    tls_client_ca: str | None = None  # file (PEM) of the CAs for client certificates; None: clients need no certificate
    tls_client_crl: str | None = None  # file (PEM) of revoked client certificates; None: none is revoked
    tls_summary: list[str] | None = None  # certificate names of clients that may see only summaries
    tls_full: list[str] | None = None  # certificate names of clients that may see everything
    metrics_listen: str | None = None  # address of the HTTP listener for /metrics; None: no listener
    metrics_tls: bool = True  # whether /metrics uses TLS; plain HTTP needs a loopback address
    metrics_tls_certificate: str | None = None  # certificate file for /metrics; None: tls_certificate applies
    metrics_tls_key: str | None = None  # key file (PEM) for /metrics; None: the key is in the certificate file
    metrics_tls_client_ca: str | None = None  # file (PEM) of client CAs for /metrics; None: clients need no certificate
    metrics_tls_client_crl: str | None = None  # file (PEM) of revoked client certificates for /metrics
    metrics_bearer_token_file: str | None = None  # file of the token of the metrics listener; None: no token
    metrics_hosts: list[str] | None = None  # accepted Host headers, besides the host's own names; None: any header
    web: bool = False  # whether the metrics listener serves pages for browsers
    web_shows_commands: bool = False
    web_shows_users: bool = False
    metrics_untagged_together: bool = False  # whether processes without a tag share the runtime_tag "untagged"
    otlp_endpoint: str | None = None  # URL that receives the metrics over OTLP; None: no OTLP
    otlp_interval_seconds: float = 30.0
    health_thresholds: dict[str, float | None] = field(default_factory=dict)  # by field name of HealthThresholds
    sysfs_root: str = "/sys"
    proc_root: str = "/proc"
    dev_root: str = "/dev"
    imds: bool = False  # whether to ask the instance metadata service for the instance's identity
    time_in_use_unit: str | None = None  # unit of the driver's nc_time_in_use: us, ns, ps; None: detect it
    export_sysfs: str | None = None  # directory where the simulated devices appear as in the driver's sysfs tree
    export_driver_version: str = "2.30.2.0"
    export_kernel_log: str | None = None  # kernel log file of a simulated host; None: a file in export_sysfs
    pod_resources_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    actions: dict[str, Any] | None = None  # the [actions] table of the configuration; None: no actions
    kmsg: str | None = None  # path of the kernel log; None: the file kmsg in dev_root; "": no kernel log
    kmsg_user_records: bool = False  # whether records that programs wrote to the kernel log count as well
    ready_fd: int | None = None  # file descriptor for the line "ready", written once the daemon serves
    exit_with_parent: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        return cls(**json.loads(text))
