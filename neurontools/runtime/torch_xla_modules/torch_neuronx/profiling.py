"""torch_neuronx.profiling: the configuration and the trace handler for torch.profiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from neurontools.profile.formats.outputs import write_outputs
from neurontools.runtime.torch_device.profiler import profile_of


class ProfileMode(Enum):
    """The subject of a profile. DEVICE and RUNTIME are in every profile here; the other modes have no effect."""

    DEVICE = "device"
    RUNTIME = "runtime"
    CPU_UTIL = "cpu_util"
    HOST_MEMORY = "host_memory"


@dataclass
class NeuronConfig:
    """The configuration for NeuronProfiler, and the `experimental_config` of torch.profiler.profile."""

    modes: Sequence[ProfileMode] = (ProfileMode.DEVICE, ProfileMode.RUNTIME)
    max_events_per_nc: int | None = None
    capture_enabled_for_nc: str | None = None
    profile_output_dir: str = "./output"
    neff_cache_dir: str | None = None
    precache_node_info: bool = False

    @property
    def neuron_modes(self) -> Sequence[ProfileMode]:
        """The modes; by this attribute our torch.profiler tells this class from a configuration of Kineto."""
        return self.modes


class NeuronProfiler:
    """`on_trace_ready=NeuronProfiler(config).export_trace` writes a profile when one is ready."""

    def __init__(self, config: NeuronConfig | None = None) -> None:
        self.config = NeuronConfig() if config is None else config

    def export_trace(self, profiler: Any) -> None:
        """Writes the trace, XSpace and memory snapshot of a torch.profiler.profile into the directory."""
        profile = profile_of(profiler)
        if profile is None:
            return
        directory = Path(self.config.profile_output_dir)
        directory.mkdir(parents=True, exist_ok=True)
        write_outputs(profile, directory, "")
