"""Adds the NeuronCores to torch.profiler, and measures the input wait.

torch 2.13 accepts device activities from C++ only. So this module adds them afterwards: to the written JSON file, and
to the function events from which torch builds its tables.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler
from torch.autograd.profiler_util import FunctionEvent
from torch.utils.data import dataloader

from neurontools.profile import Engine, Profile
from neurontools.profile.formats.chrome_trace import merge_into_trace
from neurontools.runtime.counting.metrics import call_sites
from neurontools.runtime.counting.steps import INPUT, step_clock, steps
from neurontools.runtime.profiling.recorder import InMemoryProfile
from neurontools.runtime.profiling.ring import ring
from neurontools.runtime.reporting.stderr_lines import warn_once
from neurontools.runtime.tensors.buffers import buffers
from neurontools.runtime.tensors.device import device, worker

_DeviceType: Any = torch._C._autograd.DeviceType
_windows: weakref.WeakKeyDictionary[Any, InMemoryProfile] = weakref.WeakKeyDictionary()
_profiles: weakref.WeakKeyDictionary[Any, Profile] = weakref.WeakKeyDictionary()


def open_window() -> InMemoryProfile:
    """Starts an in-memory profile of this process."""
    ring.is_eager = device.eager
    ring.watch(steps.steps_total)
    window = InMemoryProfile(ring, worker.metadata, worker.live_blocks, worker.peaks)
    with buffers.lock:
        window.start()
    return window


def profile_of(profiler: Any) -> Profile | None:
    """Returns the cores' profile from the last run of a torch.profiler.profile; None if there is none."""
    return _profiles.get(getattr(profiler, "profiler", profiler))


def patch_torch_profiler() -> None:
    """Patches torch.profiler to include operators on the NeuronCores. Call once per process."""
    activity: Any = torch.profiler.ProfilerActivity
    activity.NEURON = activity.PrivateUse1  # the name of the device's activity in torch_neuronx
    kind: Any = autograd_profiler.profile
    _wrap(torch.profiler.profiler._KinetoProfile, "__init__", _configure)
    _wrap(kind, "__init__", _init)
    _wrap(kind, "_prepare_trace", _prepare_trace)
    _wrap(kind, "_start_trace", _start_trace)
    _wrap(kind, "__exit__", _exit)
    _wrap(kind, "_parse_kineto_results", _parse_kineto_results)
    _wrap(kind, "export_chrome_trace", _export_chrome_trace)


def _wrap(kind: Any, name: str, replacement: Any) -> None:
    original = getattr(kind, name)

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return replacement(original, self, *arguments, **keywords)

    setattr(kind, name, method)


def _init(original: Any, self: Any, *arguments: Any, **keywords: Any) -> None:
    """Adds columns for the device to the profiler's tables, unless the script sets `use_device`."""
    names_device = len(arguments) >= 3 or keywords.get("use_device") is not None
    if device.acquired_cores and not names_device and keywords.get("use_kineto"):
        keywords["use_device"] = device.name
    original(self, *arguments, **keywords)


def _configure(original: Any, self: Any, *arguments: Any, **keywords: Any) -> None:
    """Drops an experimental_config of torch_neuronx, because Kineto does not accept it."""
    if hasattr(keywords.get("experimental_config"), "neuron_modes"):
        keywords["experimental_config"] = None
    original(self, *arguments, **keywords)


def _prepare_trace(original: Any, self: Any) -> None:
    if device.acquired_cores and self not in _windows:
        _windows[self] = open_window()
    original(self)


def _start_trace(original: Any, self: Any) -> None:
    original(self)
    window = _windows.get(self)
    if window is not None:
        window.restart()


def _exit(original: Any, self: Any, *error: Any) -> Any:
    window = _windows.pop(self, None)
    if window is not None:
        _profiles[self] = window.stop()
    return original(self, *error)


def _export_chrome_trace(original: Any, self: Any, path: str, *arguments: Any, **keywords: Any) -> Any:
    result = original(self, path, *arguments, **keywords)
    profile = _profiles.get(self)
    if profile is not None:
        try:
            file = Path(path)
            file.write_text(merge_into_trace(file.read_text(), profile))
        except (OSError, ValueError) as error:
            warn_once("merge", f"the trace has no tracks of NeuronCores: {path}: {error}")
    return result


def _parse_kineto_results(original: Any, self: Any, result: Any, *arguments: Any, **keywords: Any) -> list[Any]:
    events: list[Any] = original(self, result, *arguments, **keywords)
    profile = _profiles.get(self)
    if profile is None or self.use_device != device.name:
        return events
    operators = _function_events(profile, result.trace_start_ns(), max((event.id for event in events), default=0))
    _link(events, operators, profile, result.trace_start_ns())
    events += operators
    events.sort(key=lambda event: [event.time_range.start, -event.time_range.end])
    return events


def _function_events(profile: Profile, start_ns: int, last_id: int) -> list[Any]:
    """Returns the operators of all executions as function events of the device, with times relative to `start_ns`."""
    local = {core: index for index, core in enumerate(profile.metadata.cores)}
    function_events = []
    for number, event in enumerate(profile.execution_events(), last_id + 1):
        if event.operator is None or event.core is None:
            continue
        engine = Engine.VECTOR if event.engine is None else event.engine
        function_events.append(
            FunctionEvent(
                id=number,
                name=event.name,
                trace_name=event.name,
                thread=int(engine),
                start_us=(event.start_ns - start_ns) / 1e3,
                end_us=(event.end_ns - start_ns) / 1e3,
                device_type=_DeviceType.PrivateUse1,
                device_index=local.get(event.core, 0),
                device_resource_id=int(engine),
                use_device=device.name,
                input_shapes=[],
                stack=[f"{place.file}({place.line}): {place.function}" for place in event.stack],
                flops=event.flops or 0,
            )
        )
    return function_events


def _link(events: list[Any], operators: list[Any], profile: Profile, start_ns: int) -> None:
    """Adds the device time of each operator to the event of the host call that recorded the operator.

    The n-th operator of a name belongs to the n-th call of this name. If there are more operators than calls, goes
    through the calls again.
    """
    windows = [((row.start_ns - start_ns) / 1e3, (row.end_ns - start_ns) / 1e3) for row in profile.executions]
    calls: dict[str, deque[Any]] = defaultdict(deque)
    position = 0
    for event in sorted(events, key=lambda each: each.time_range.start):
        if event.device_type != _DeviceType.CPU or event.is_async or not event.name.startswith("aten::"):
            continue
        while position < len(windows) and windows[position][1] < event.time_range.start:
            position += 1
        if position < len(windows) and windows[position][0] <= event.time_range.start:
            event.flops = 0  # the operator of the execution has these FLOPs
            continue  # this event is a CPU kernel in an execution, not a call of the script
        calls[event.name].append(event)
    for each in operators:
        waiting = calls.get(each.name.partition(".")[0])
        if waiting:
            call = waiting.popleft()
            call.append_kernel(each.name, each.device_index, each.time_range.elapsed_us())
            waiting.append(call)


def measure_input_wait() -> None:
    """Patches DataLoader to count the wait for each batch as input wait. Call once per process.

    Skips background threads, because the script does not wait while they prefetch batches.
    """
    iterator: Any = dataloader._BaseDataLoaderIter
    original = iterator.__next__

    @functools.wraps(original)
    def timed(self: Any) -> Any:
        if step_clock.is_background() or step_clock.is_open(INPUT):  # a loader of torch_xla counts its own waits
            return original(self)
        place = call_sites.count_call("input")
        if ring.traced_steps:
            ring.trace_loader()
        began = time.perf_counter()
        entry = step_clock.open(INPUT, began)
        try:
            return original(self)
        finally:
            call_sites.add_seconds(place, step_clock.close(entry, time.perf_counter()))
            if ring.is_on:
                ring.record_input_wait(int(began * 1e9))

    iterator.__next__ = timed
