"""neuron-healthcheck: its program, and what it has to see."""

from __future__ import annotations

from tests.harness.paths import ROOT
from tests.harness.running_daemon import RunningDaemon

HEALTHCHECK = ROOT / "scripts" / "neuron-healthcheck"


def has_findings(daemon: RunningDaemon) -> bool:
    """Whether a daemon finds anything. What is new in a tree may take its reading more than a tick to see."""
    health = daemon.snapshot().health
    return health is not None and bool(health.findings)
