"""torch_xla.debug.profiler: profiles for TensorBoard and xprof, and named spans of a script."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import torch

from neurontools.profile.definitions import SpanKind
from neurontools.profile.formats.outputs import PLUGIN, peaks_of, run_name, worker_name
from neurontools.profile.formats.xplane import write_xplane
from neurontools.runtime.profiling.recorder import InMemoryProfile
from neurontools.runtime.profiling.ring import ring
from neurontools.runtime.tensors.device import device
from neurontools.runtime.torch_device.profiler import open_window

_started: list[tuple[InMemoryProfile, Path]] = []
_ports: set[int] = set()


def start_trace(log_dir: str) -> None:
    """Starts a profile, which `stop_trace` writes below `log_dir`. Raises RuntimeError if a profile is running."""
    if _started:
        raise RuntimeError("a profile has been started already; only one may run at a time: call stop_trace first")
    device.flush_all("ProfileStart")
    _started.append((open_window(), Path(log_dir)))


def stop_trace() -> None:
    """Writes the profile to <log_dir>/plugins/profile/<time>/<host>.xplane.pb.

    Raises RuntimeError if no profile is running.
    """
    if not _started:
        raise RuntimeError("no profile has been started; call start_trace first")
    device.flush_all("ProfileStop")
    window, log_dir = _started.pop()
    profile = window.stop()
    about = profile.metadata
    folder = log_dir / PLUGIN / run_name(about.began_ns)
    folder.mkdir(parents=True, exist_ok=True)
    write_xplane(profile, folder / f"{worker_name(about)}.xplane.pb", peaks_of(about))


class Server:
    """A profile server that only `trace` in this process can use. The server opens no socket."""

    def __init__(self, port: int) -> None:
        self.port = port
        _ports.add(port)


def start_server(port: int, only_on_master: bool = True) -> Server:
    """Enables `trace` and `trace_detached` in this process. In torch_xla, callers must keep the result."""
    return Server(port)


def trace(
    service_addr: str,
    logdir: str,
    duration_ms: int = 1000,
    num_tracing_attempts: int = 3,
    host_tracer_level: int = 2,
    device_tracer_level: int = 1,
    delay_ms: int = 0,
    timeout_s: int = 120,
    interval_s: int = 5,
) -> None:
    """Profiles this process for `duration_ms`. `service_addr` is localhost:port, with the port of `start_server`.

    Raises RuntimeError for another port, because this function can't profile other processes.
    """
    port = service_addr.rpartition(":")[2]
    if not (port.isdigit() and int(port) in _ports):
        raise RuntimeError(
            f"{service_addr}: this process has started no profile server there, and can't profile other processes; "
            "call trace_detached in the training, or start_trace and stop_trace, or run neuron-run --profile DIR"
        )
    time.sleep(delay_ms / 1e3)
    start_trace(logdir)
    time.sleep(duration_ms / 1e3)
    stop_trace()


def trace_detached(*arguments: Any, **keywords: Any) -> None:
    """Runs `trace` in a background thread."""
    threading.Thread(target=trace, args=arguments, kwargs=keywords, name="neurontools-trace", daemon=True).start()


class Trace(torch.profiler.record_function):
    """A named span of the script, which profiles show."""

    def __init__(self, name: str, **details: Any) -> None:
        super().__init__(name, " ".join(f"{key}={value}" for key, value in details.items()) or None)
        self._begun_ns = 0

    def __enter__(self) -> Any:
        self._begun_ns = time.perf_counter_ns()
        enter: Any = super().__enter__
        return enter()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if ring.is_on:
            ring.record_span(SpanKind.ANNOTATION, self.name, -1, self._begun_ns, time.perf_counter_ns())


class StepTrace(Trace):
    """A named span of a training step, which executes the pending operators at its end."""

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            device.flush_all("MarkStep")
        super().__exit__(*error)


def trace_me(scope: str) -> contextlib.AbstractContextManager[Any]:
    """Returns a context manager for a named span, which profiles show."""
    return Trace(scope)
