"""The validated settings of a daemon, which its first stage passes to the second as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one daemon; `configuration` reads and checks them, nothing here does."""

    socket: str
    interval_seconds: float = 1.0
    history_seconds: float = 600.0
    history_bytes: int = 16 * 2**20
    log_level: str = "info"
    state_directory: str | None = None  # where the log of what ended is kept; None: in memory alone
    group: str | None = None  # its members may use the sockets; None: only this user
    simulate: str | None = None  # instance type; None: the host's own devices
    ultraserver: str | None = None  # NAME:INDEX, the UltraServer of the simulated instance and which node of it that is
    lnc: int | None = None  # None: NEURON_LOGICAL_NC_CONFIG, else the default of the instance type
    load: str | None = None  # scenario of synthetic load
    load_seed: int = 0
    load_neuroncores: int | None = None  # logical cores the scenario uses; None: all
    listen: str | None = None  # address of the API over TLS; None: it is on the socket alone
    tls_certificate: str | None = None  # PEM files for whatever listens on the network; None: no TLS
    tls_key: str | None = None  # None: in the file of the certificate
    tls_client_ca: str | None = None  # who signs the certificates that clients must show; None: they need none
    tls_summary: list[str] | None = None  # names of certificates that see no commands and no users
    tls_full: list[str] | None = None  # names of certificates that see all
    metrics_listen: str | None = None  # address of the HTTP listener for /metrics; None: there is none
    metrics_tls: bool = True  # False: plain HTTP whatever certificates there are, on a loopback address alone
    metrics_tls_certificate: str | None = None  # PEM files for the listener; None: tls_certificate, or plain HTTP
    metrics_tls_key: str | None = None  # None: in the file of the certificate
    metrics_tls_client_ca: str | None = None  # who signs the certificates that readers must show; None: they need none
    metrics_bearer_token_file: str | None = None  # what readers must know; None: nothing
    metrics_hosts: list[str] | None = None  # names that requests may be for, beside the host's own; None: any
    web: bool = False  # pages for browsers, on the listener of the metrics
    web_shows_commands: bool = False
    web_shows_users: bool = False
    metrics_untagged_together: bool = False  # one runtime_tag for all processes without a tag, in place of their PIDs
    otlp_endpoint: str | None = None  # URL that metrics are sent to over OTLP; None: they are not
    otlp_interval_seconds: float = 30.0
    health_thresholds: dict[str, float | None] = field(default_factory=dict)  # those of verdicts.thresholds that differ
    sysfs_root: str = "/sys"
    proc_root: str = "/proc"
    dev_root: str = "/dev"
    imds: bool = False  # ask the instance metadata service who we are
    time_in_use_unit: str | None = None  # us, ns or ps; None: find out
    export_sysfs: str | None = None  # directory for a tree like the driver's
    export_driver_version: str = "2.30.2.0"
    export_kernel_log: str | None = None  # file for the kernel log of a simulated host; None: that of the tree, if any
    pod_resources_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    actions: dict[str, Any] | None = None  # what to do when findings begin or end; None: nothing
    kmsg: str | None = None  # the kernel's log; None: the /dev/kmsg of the devices that are read, "" none at all
    ready_fd: int | None = None  # gets the line "ready" once the daemon serves
    exit_with_parent: bool = False

    def to_json(self) -> str:
        """For `from_json` in another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """What `to_json` wrote."""
        return cls(**json.loads(text))
