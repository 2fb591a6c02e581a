"""libneuronxla on simulated NeuronCores: the functions that AWS's samples call. No snapshot of HLO is ever written."""

from __future__ import annotations

from collections.abc import Callable

from neurontools.runtime.launch.import_hook import VERSIONS
from neurontools.runtime.reporting.stderr_lines import warn_once

SnapshotCallback = Callable[[str, int, int], str]
__version__ = VERSIONS["libneuronxla"]
_callbacks: list[SnapshotCallback] = [lambda *_: "inputs"]


def configure_environment() -> None:
    """Does nothing: the runtime needs no environment variables."""


def register_hlo_snapshot_callback(callback: SnapshotCallback) -> SnapshotCallback:
    """Returns the callback that was registered before. Nothing calls it, because graphs have no HLO here."""
    warn_once("HLO snapshots", "HLO snapshots are not written here; neuron-run --profile DIR records the graphs")
    _callbacks.append(callback)
    return _callbacks.pop(0)


def supported_clients() -> list[str]:
    """Returns the supported client package, with its version."""
    return [f"torch_xla {VERSIONS['torch_xla']}"]
