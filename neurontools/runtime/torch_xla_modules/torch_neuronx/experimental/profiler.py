"""torch_neuronx.experimental.profiler: profiles a block of a script for TensorBoard, xprof and Perfetto.

The other names are those of torch_xla.debug.profiler.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from torch_xla.debug.profiler import StepTrace as StepTrace
from torch_xla.debug.profiler import Trace as Trace
from torch_xla.debug.profiler import start_server as start_server
from torch_xla.debug.profiler import start_trace as start_trace
from torch_xla.debug.profiler import stop_trace as stop_trace
from torch_xla.debug.profiler import trace as trace
from torch_xla.debug.profiler import trace_detached as trace_detached

from neurontools.profile import Profile
from neurontools.profile.formats.outputs import PLUGIN, write_outputs
from neurontools.runtime.profiling.recorder import InMemoryProfile
from neurontools.runtime.tensors.device import device
from neurontools.runtime.torch_device.profiler import open_window

_TYPES = ("operator", "trace")


class profile:  # noqa: N801 - the name in torch_neuronx
    """Profiles a `with` block, for at most `ms_duration` milliseconds after the start.

    At the end of the block, writes a trace, an XSpace and a memory snapshot. The files are in the log directory of
    TensorBoard: `logs` for the directory `logs/plugins/neuron`, and any other directory itself. Every profile has both
    the operators of "operator" and the launches of "trace". `port`, `delete_working` and `traced_only` have no effect,
    because there is no server, no working file, and no difference for traced models.

    Raises ValueError for another `profile_type`, or a duration that is not positive.
    """

    def __init__(
        self,
        port: int = 9012,
        ms_duration: int = 60_000,
        neuron_tensorboard_plugin_dir: str = "logs/plugins/neuron",
        profile_type: str = "operator",
        auto_start: bool = True,
        delete_working: bool = True,
        traced_only: bool = False,
    ) -> None:
        if profile_type not in _TYPES:
            raise ValueError(f"profile_type={profile_type!r}: give one of {' and '.join(map(repr, _TYPES))}")
        if not ms_duration > 0:
            raise ValueError(f"ms_duration={ms_duration!r}: give milliseconds above 0")
        self._seconds = ms_duration / 1e3
        given = Path(neuron_tensorboard_plugin_dir)
        self._log_directory = given.parent.parent if given.parent.name == PLUGIN.parent.name else given
        self._auto_start = auto_start
        self._lock = threading.Lock()
        self._window: InMemoryProfile | None = None
        self._timer: threading.Timer | None = None
        self._profile: Profile | None = None

    def start(self) -> None:
        """Starts the profile if it has not been started."""
        with self._lock:
            if self._window is not None or self._profile is not None:
                return
            device.flush_all("ProfileStart")
            self._window = open_window()
            self._timer = threading.Timer(self._seconds, self._stop)
            self._timer.daemon = True
            self._timer.start()

    def __enter__(self) -> profile:
        if self._auto_start:
            self.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            device.flush_all("ProfileStop")
        self._stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._profile is not None:
            self._log_directory.mkdir(parents=True, exist_ok=True)
            write_outputs(self._profile, self._log_directory, "")

    def _stop(self) -> None:
        """Ends the recording. Runs in the thread of the timer, or at the end of the block."""
        with self._lock:
            if self._window is not None:
                self._profile, self._window = self._window.stop(), None
