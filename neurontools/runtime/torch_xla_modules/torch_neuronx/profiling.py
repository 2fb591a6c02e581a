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
    """A kind of events in a profile. Here every profile records DEVICE and RUNTIME; the other modes have no effect."""

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
        """The profile modes. The patched torch.profiler recognizes this class by this attribute."""
        return self.modes


class NeuronProfiler:
    """Writes profiles: pass `on_trace_ready=NeuronProfiler(config).export_trace` to torch.profiler.profile."""

    def __init__(self, config: NeuronConfig | None = None) -> None:
        self.config = NeuronConfig() if config is None else config

    def export_trace(self, profiler: Any) -> None:
        """Writes the trace, XSpace and memory snapshot of a torch.profiler.profile to `profile_output_dir`."""
        profile = profile_of(profiler)
        if profile is None:
            return
        directory = Path(self.config.profile_output_dir)
        directory.mkdir(parents=True, exist_ok=True)
        write_outputs(profile, directory, "")
