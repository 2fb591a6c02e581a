"""Registers simulated NeuronCores as a torch device, and connects the parts of the runtime."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from neurontools.runtime.counting.steps import count_training_steps, step_clock, time_saves
from neurontools.runtime.execution import process_group
from neurontools.runtime.execution.executor import Executor, prepare_profile
from neurontools.runtime.execution.work import watch_steady_state
from neurontools.runtime.kernels import registration
from neurontools.runtime.launch.profiles import begin_requested_profile, captures, connect_ring, discard_profiles
from neurontools.runtime.launch.training_statistics import collect_counters, watch_hbm_growth, watch_optimizers
from neurontools.runtime.operators.layout import layouts
from neurontools.runtime.profiling.ring import ring
from neurontools.runtime.programs.numerics import narrowed_types
from neurontools.runtime.reporting.control_channel import CaptureRequests
from neurontools.runtime.reporting.process_end import hold_at_process_end
from neurontools.runtime.reporting.reporter import Reporter
from neurontools.runtime.reporting.training_report import training_log
from neurontools.runtime.tensors.buffers import Core, buffers
from neurontools.runtime.tensors.cores import Reported, attach_cores
from neurontools.runtime.tensors.device import DEFAULT_PENDING_BOUND, device, worker
from neurontools.runtime.tensors.storages import storages
from neurontools.runtime.torch_device import torch_module
from neurontools.runtime.torch_device.deferred_imports import defer_dynamo, defer_symbolic_shapes
from neurontools.runtime.torch_device.interrupts import guard_backward_hooks, resend_lost_interrupts
from neurontools.runtime.torch_device.memory import add_memory_functions
from neurontools.runtime.torch_device.parameters import account_parameters, keep_parameter_identity
from neurontools.runtime.torch_device.profiler import measure_input_wait, patch_torch_profiler
from neurontools.runtime.torch_device.storage_patches import patch_serialization, patch_storage_resize
from neurontools.runtime.torch_device.torch_patches import (
    patch_ddp,
    patch_dtensor,
    patch_fsdp,
    patch_stock_torch,
    patch_torch_accelerator,
    patch_torch_compile,
)

EAGER = ("NEURON_USE_EAGER_DEBUG_MODE", "XLA_USE_EAGER_DEBUG_MODE")
PENDING_BOUND = "NEURONTOOLS_PENDING_BOUND"
_C: Any = torch._C
_registered: list[Any] = []
before_report_hooks: list[Callable[[Reporter], None]] = []
"""Functions that run before each report, after the counters are collected."""


class _Hooks(_C._acc.PrivateUse1Hooks):  # type: ignore[misc]
    """The hooks that torch's C++ code calls for a PrivateUse1 device."""

    def is_built(self, *_: Any) -> bool:
        return True

    is_available = has_primary_context = is_built


class _Guard(_C._acc.DeviceGuard):  # type: ignore[misc]
    """The device guard of torch. `type_` always returns PrivateUse1.

    torch calls `type_` dozens of times per training step. A Python function would be several times slower than this
    bound C method.
    """

    type_ = itertools.repeat(_C._autograd.DeviceType.PrivateUse1).__next__


def is_registered() -> bool:
    return bool(_registered)


def register_device(name: str = "xla", environment: Mapping[str, str] | None = None) -> Executor:
    """Registers the device with torch under a name and returns its executor. The first use of the device takes cores.

    A second call returns the same executor. Raises RuntimeError if the device is registered under another name, because
    torch allows only one name.
    """
    if is_registered():
        if device.name != name:
            raise RuntimeError(
                f"this process has the device as {device.name!r} already, torch allows one name per process; set "
                f"NEURONTOOLS_DEVICE={name}"
            )
        return executor()
    environment = os.environ if environment is None else environment
    torch.utils.rename_privateuse1_backend(name)
    device.name = name
    training_log.is_counted_by_runtime = True
    layouts.find_narrowed_types = lambda: narrowed_types(environment)
    process_executor = Executor(environment)
    ring.start_hooks.append(lambda: prepare_profile(process_executor.programs.values()))

    def acquire_cores() -> list[Core]:
        step_clock.begin()
        process_executor.cores, process_executor.monitor = attach_cores(
            environment, CaptureRequests(captures.start_capture)
        )
        if isinstance(process_executor.monitor, Reported):
            training_log.runtime_reporter = process_executor.monitor.reporter
            process_executor.monitor.reporter.before_reports(partial(_collect, process_executor))
            process_executor.faults = process_executor.monitor.reporter.faults or process_executor.faults
            worker.instance_type = process_executor.monitor.reporter.instance_type
            worker.logical_neuroncore_config = process_executor.monitor.reporter.logical_neuroncore_config
        device.acquired_cores = process_executor.cores
        begin_requested_profile(environment)
        return process_executor.cores

    device.acquire_cores = acquire_cores
    device.flush = process_executor.flush
    device.eager = name == "neuron" or any(environment.get(variable) == "1" for variable in EAGER)
    bound = environment.get(PENDING_BOUND, "")
    device.pending_bound = int(bound) if bound.isdigit() and int(bound) else DEFAULT_PENDING_BOUND
    if name != "xla":
        torch.utils.generate_methods_for_privateuse1_backend()
    module: Any = torch_module.module(name)
    add_memory_functions(module)
    torch._register_device_module(name, module)
    _registered.extend([_Hooks(), _Guard(), process_executor])
    _C._acc.register_python_privateuseone_hook(_registered[0])
    _C._acc.register_python_privateuseone_device_guard(_registered[1])
    registration.register_kernels(name, _registered.append)
    patch_serialization(name)
    # Makes Module.to() keep Parameter objects, so tied weights stay tied and optimizers keep their parameters.
    torch.__future__.set_swap_module_params_on_conversion(True)
    os.register_at_fork(after_in_child=buffers.renew_lock)
    hold_at_process_end(buffers.lock)
    for install in (
        count_training_steps,
        watch_hbm_growth,
        watch_optimizers,  # must follow count_training_steps, whose step count it reads
        patch_torch_accelerator,
        guard_backward_hooks,
        defer_dynamo,
        defer_symbolic_shapes,
        patch_torch_compile,
        patch_dtensor,
        patch_fsdp,
        measure_input_wait,
        resend_lost_interrupts,
        keep_parameter_identity,
        account_parameters,
        process_group.register_backend,
        connect_ring,
        patch_torch_profiler,
        patch_storage_resize,
        time_saves,
        patch_stock_torch,
        patch_ddp,
        watch_steady_state,
    ):
        install()
    return process_executor


def _collect(process_executor: Executor, reporter: Reporter) -> None:
    collect_counters(process_executor, reporter)
    for hook in before_report_hooks:
        hook(reporter)


def executor() -> Executor:
    found: Executor = _registered[2]
    return found


def release_cores() -> bool:
    """Detaches from the daemon, so that child processes can take the cores. The next use of the device takes cores.

    Returns False and keeps the cores if a tensor or a traced model is on a core.
    """
    if not is_registered() or storages.words is not None or any(executor().loaded.values()):
        return not is_registered()
    discard_profiles()
    monitor = executor().monitor
    if isinstance(monitor, Reported):
        monitor.reporter.close()
    device.acquired_cores = []
    return True
