"""Patches of PyTorch functions that depend on the device type and would fail or be wrong for this device.

torch.distributed.fsdp and torch.distributed.tensor take long to import and few scripts use them, so they are patched
when a script imports them. `fully_shard` needs a DeviceMesh, which torch leaves to torch_xla's SPMD under the device
name `xla`. torch's context_parallel needs attention kernels of CUDA. Both raise an error immediately.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import asgd, nadam, radam
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from neurontools.runtime.reporting.stderr_lines import warn_once
from neurontools.runtime.tensors.buffers import Tensor
from neurontools.runtime.tensors.device import device
from neurontools.runtime.torch_device import memory, torch_module
from neurontools.runtime.torch_device.deferred_imports import restore_functions


def patch_stock_torch() -> None:
    """Patches generators, streams, DataParallel, optimizers, gradient clipping, the old save format and TorchScript.

    Call once per process.
    """
    _generators()
    _gradient_clipping()
    _data_parallel()
    _optimizers()
    _streams()
    _legacy_save()
    _torchscript_errors()


def _generators() -> None:
    """Makes `torch.Generator("xla")` work without torch's C++ hook. The random numbers are drawn on the host."""
    base: Any = torch._C.Generator
    _device = device  # an alias, because a parameter named `device` hides the module in Generator

    class _Kind(type(base)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, base)

    class Generator(base, metaclass=_Kind):  # type: ignore[misc]
        __doc__ = base.__doc__
        _device: torch.device

        def __new__(cls, device_: Any = "cpu", *, device: Any = None) -> Any:
            where = torch.device(device_ if device is None else device)
            if where.type != _device.name:
                return base(where)
            generator = super().__new__(cls)
            generator._device = torch.device(where.type, where.index or 0)
            return generator

        def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
            """Does nothing: `__new__` has set all state."""

        @property
        def device(self) -> torch.device:
            return self._device

    torch.Generator = Generator  # type: ignore[misc]


def _gradient_clipping() -> None:
    """Makes clip_grad_norm_ return a device tensor also if no parameter has a gradient."""
    module: Any = sys.modules["torch.nn.utils.clip_grad"]
    original = module.clip_grad_norm_

    @functools.wraps(original)
    def clip_grad_norm_(parameters: Any, *arguments: Any, **keywords: Any) -> Any:
        if not isinstance(parameters, Tensor):
            parameters = list(parameters)
        norm = original(parameters, *arguments, **keywords)
        first = parameters if isinstance(parameters, Tensor) else parameters[0] if parameters else norm
        return norm.to(first.device) if norm.is_cpu and first.device.type == device.name else norm

    module.clip_grad_norm_ = torch.nn.utils.clip_grad_norm_ = clip_grad_norm_


def _data_parallel() -> None:
    """Makes nn.DataParallel use one device, as on the CPU, because torch copies modules to devices in C++."""
    kind: Any = torch.nn.DataParallel
    original = kind.__init__

    @functools.wraps(original)
    def init(self: Any, module: torch.nn.Module, *arguments: Any, **keywords: Any) -> None:
        if torch.cuda.is_available():
            original(self, module, *arguments, **keywords)
            return
        torch.nn.Module.__init__(self)
        self.module, self.device_ids = module, []
        if any(p.device.type == device.name for p in module.parameters()) and len(device.acquired_cores) > 1:
            warn_once(
                "DataParallel",
                f"nn.DataParallel uses one NeuronCore of this process; use DistributedDataParallel with a process for "
                f"each ({len(device.acquired_cores)} cores: neuron-run --nproc-per-node {len(device.acquired_cores)})",
            )

    kind.__init__ = init


def _streams() -> None:
    """Makes `Tensor.record_stream` do nothing on the device: its streams are Python objects, which torch refuses."""
    kind: Any = Tensor
    original = kind.record_stream

    @functools.wraps(original)
    def record_stream(self: Tensor, stream: Any) -> None:
        if self.device.type != device.name:
            original(self, stream)

    kind.record_stream = record_stream


def _optimizers() -> None:
    """Turns `foreach` off by default for ASGD, NAdam and RAdam: `foreach` and the plain loop differ in results."""
    for module in (asgd, nadam, radam):
        original = module._default_to_fused_or_foreach

        def choose(params: Any, differentiable: bool, use_fused: bool = False, original: Any = original) -> Any:
            if any(isinstance(p, Tensor) and p.device.type == device.name for p in params):
                return False, False
            return original(params, differentiable, use_fused)

        module._default_to_fused_or_foreach = choose  # type: ignore[attr-defined]


def _legacy_save() -> None:
    """Makes torch.save refuse device tensors in the format before torch 1.6.

    That format stores the bytes after the tensors, so loading a tensor would copy bytes that are not read yet.
    """
    serialization: Any = torch.serialization
    original = serialization._legacy_save

    @functools.wraps(original)
    def save(*arguments: Any, **keywords: Any) -> Any:
        kind: Any = Tensor
        reduce_ex = kind.__reduce_ex__

        def refuse(self: Tensor, protocol: int) -> Any:
            if self.device.type == device.name:
                raise NotImplementedError(
                    f"torch.save(…, _use_new_zipfile_serialization=False): the old format can't hold tensors of "
                    f"{device.name}; save CPU tensors (xm.save does), or leave the argument out"
                )
            return reduce_ex(self, protocol)

        kind.__reduce_ex__ = refuse
        try:
            return original(*arguments, **keywords)
        finally:
            kind.__reduce_ex__ = reduce_ex

    serialization._legacy_save = save


_PYTHON_STACK = re.compile(r"\n\nAt:\n(?:  .*\n?)+\n?")
_SECOND_TYPE = re.compile(r"^RuntimeError: (?=\w+Error: )", re.MULTILINE)


def _torchscript_errors() -> None:
    """Removes from errors of TorchScript what pybind11 adds to an error of a Python kernel: its type and its stack."""

    def with_plain_errors(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def plain(*arguments: Any, **keywords: Any) -> Any:
            try:
                return call(*arguments, **keywords)
            except RuntimeError as error:
                text = str(error)
                if _PYTHON_STACK.search(text):
                    error.args = (_SECOND_TYPE.sub("", _PYTHON_STACK.sub("\n", text)),)
                raise

        return plain

    core: Any = torch._C
    for kind in (core.ScriptFunction, core.ScriptMethod):
        kind.__call__ = with_plain_errors(kind.__call__)


BACKENDS = ("neuron", "openxla")


def compile_backend(graph_module: Any, _example_inputs: Any, **_options: Any) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        device.flush_all("BeforeCompiledGraph")
        device.enter_lazy_scope()
        try:
            return graph_module.forward(*arguments)
        finally:
            device.leave_lazy_scope()

    return run


def _by_device(mode: Any, options: Any, keywords: dict[str, Any]) -> Callable[..., Any]:
    """Returns a backend for torch.compile: the device's backend for device tensors, inductor for other tensors."""

    def choose(graph_module: Any, example_inputs: Any) -> Callable[..., Any]:
        tensors = [*example_inputs, *graph_module.parameters(), *graph_module.buffers()]
        if any(isinstance(t, torch.Tensor) and t.device.type == device.name for t in tensors):
            return compile_backend(graph_module, example_inputs)
        wrapper: Any = torch._TorchCompileInductorWrapper
        inductor = wrapper(mode if options else mode or "default", options, keywords.get("dynamic"), None)
        return inductor(graph_module, example_inputs)  # type: ignore[no-any-return]

    return choose


def patch_torch_compile() -> None:
    """Adds the backends of this device to torch.compile, and to torch._dynamo when it is imported. Call once.

    Patches torch.compile itself, because importing torch._dynamo takes a second.
    """
    on_import("torch._dynamo", _register_with_dynamo)
    original = torch.compile

    @functools.wraps(original)
    def compile_(*arguments: Any, **keywords: Any) -> Any:
        if keywords.get("backend") in BACKENDS:
            keywords["backend"] = compile_backend
            keywords.pop("mode", None)
            keywords.pop("options", None)
        elif keywords.get("backend", "inductor") == "inductor" and len(arguments) <= 1:
            keywords["backend"] = _by_device(keywords.pop("mode", None), keywords.pop("options", None), keywords)
        return original(*arguments, **keywords)

    torch.compile = compile_


def _register_with_dynamo(dynamo: Any) -> None:
    """Adds the device's backend to Dynamo, and keeps Dynamo from compiling functions of the runtime by themselves.

    C++ calls such functions, for example the process group's while DistributedDataParallel synchronizes buffers.
    Functions that a compiled function calls, such as collectives, still become parts of its graph.
    """
    restore_functions()
    dynamo.register_backend(compile_backend, "neuron")
    rules, runtime = dynamo.trace_rules, Path(__file__).parents[1]
    for package in iter_modules([str(runtime)]):
        if package.ispkg and package.name != "torch_xla_modules":  # scripts may compile functions of torch_xla
            rules.add(f"neurontools.runtime.{package.name}")
    rules.BUILTIN_INLINE_WHEN_CALLED.add(f"{runtime.as_posix()}/")


class _MapOnHost(TorchDispatchMode):
    """Creates DDP's map of used parameters, an int32 tensor, on the CPU instead of the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = dict(kwargs or {})
        if func is torch.ops.aten.empty.memory_format and keywords.get("dtype") is torch.int32:
            wanted = keywords.get("device")
            if wanted is not None and torch.device(wanted).type == device.name:
                keywords["device"] = torch.device("cpu")
        return func(*args, **keywords)


def patch_ddp() -> None:
    """Makes DistributedDataParallel keep its map of used parameters on the CPU, and accept local ranks as device IDs.

    Scripts pass `device_ids=[local_rank]`, but a rank has one core here, whose index is 0. Call once per process.
    """
    parallel: Any = DistributedDataParallel
    init = parallel.__init__

    @functools.wraps(init)
    def init_on_own_core(self: Any, module: Any, device_ids: Any = None, *arguments: Any, **keywords: Any) -> None:
        if device_ids and any(p.device.type == device.name for p in module.parameters()):
            device_ids = keywords["output_device"] = None
        init(self, module, device_ids, *arguments, **keywords)

    parallel.__init__ = init_on_own_core
    make = parallel._ddp_init_helper

    @functools.wraps(make)
    def make_with_map_on_host(*arguments: Any, **keywords: Any) -> Any:
        mode: Any = _MapOnHost
        with mode():
            return make(*arguments, **keywords)

    parallel._ddp_init_helper = make_with_map_on_host


def _index(which: Any) -> int:
    if which is None or isinstance(which, int):
        return which or 0
    wanted = torch.device(which)
    if wanted.type != device.name:
        raise ValueError(f"{wanted} is not the current accelerator, which is {device.name}")
    return wanted.index or 0


def _forward(name: str) -> Any:
    function = torch_module.synchronize if name == "synchronize" else memory.NAMES[name]

    def forwarded(device_index: Any = None) -> Any:
        return function(_index(device_index))

    forwarded.__name__ = name
    forwarded.__doc__ = function.__doc__
    return forwarded


def get_device_capability(which: Any = None) -> dict[str, Any]:
    torch_module.core_of(_index(which))
    quantized = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)
    types = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return {"supported_dtypes": types.difference(quantized)}


_FORWARDED = (
    *("synchronize", "memory_allocated", "max_memory_allocated", "memory_reserved"),
    *("max_memory_reserved", "reset_peak_memory_stats", "reset_accumulated_memory_stats"),
)


def patch_torch_accelerator() -> None:
    """Replaces functions of torch.accelerator that would fail on this device. Call once per process."""
    accelerator: Any = torch.accelerator
    functions: dict[str, Any] = {name: _forward(name) for name in _FORWARDED}
    functions |= {
        "empty_cache": memory.empty_cache,
        "empty_host_cache": memory.empty_cache,
        "memory_stats": lambda which=None, /: memory.flat_memory_stats(_index(which)),
        "get_device_capability": get_device_capability,
        "get_memory_info": _forward("mem_get_info"),
        "set_device_index": lambda which, /: torch_module.set_device(_index(which)),
        "set_device_idx": lambda which, /: torch_module.set_device(_index(which)),
        "set_stream": lambda stream, /: torch_module.set_stream(stream),
    }
    for name, function in functions.items():
        for place in (accelerator, getattr(accelerator, "memory", None)):
            if hasattr(place, name):
                setattr(place, name, function)


_import_hooks: dict[str, Callable[[Any], None]] = {}


class _HookedLoader(Loader):
    """Loads a package with its own loader, then patches it."""

    def __init__(self, original: Any, change: Callable[[Any], None]) -> None:
        self._original = original
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._original.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._original.exec_module(module)
        self._change(module)


class _HookedFinder(MetaPathFinder):
    """Finds only the packages that have an import hook."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        change = _import_hooks.get(fullname)
        if change is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _HookedLoader(spec.loader, change)
        return spec


def on_import(package: str, change: Callable[[Any], None]) -> None:
    """Calls `change` with a package after its import, or now if it is loaded. Replaces any earlier hook."""
    loaded = sys.modules.get(package)
    if loaded is not None:
        change(loaded)
        return
    if not _import_hooks:
        sys.meta_path.insert(0, _HookedFinder())
    _import_hooks[package] = change


def patch_dtensor() -> None:
    """Adds a handler for linear_backward to DTensor, and lets optimizers mix DTensors with other parameters.

    `parallelize_module` leaves some parameters plain. Optimizers use `foreach` by default on accelerators, which then
    raises an error; on the CPU they use a loop. Patches DTensor at its import. Call once per process.
    """

    def patch(package: Any) -> None:
        kind = package.DTensor
        kind._op_dispatcher._custom_op_handlers[torch.ops.aten.linear_backward.default] = _linear_backward

        def use_loop_for_mixed(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            for group in optimizer.param_groups:
                if group.get("foreach", False) is None and len({isinstance(p, kind) for p in group["params"]}) > 1:
                    group["foreach"] = False

        register_optimizer_step_pre_hook(use_loop_for_mixed)

    on_import("torch.distributed.tensor", patch)


def _linear_backward(_operator: Any, arguments: tuple[Any, ...], _keywords: Any) -> tuple[Tensor | None, ...]:
    value, gradient, weight, (of_value, of_weight, of_bias) = arguments
    rows = gradient.reshape(-1, gradient.shape[-1])
    flat = value.reshape(-1, value.shape[-1])
    return (
        rows.mm(weight).reshape(value.shape) if of_value else None,
        rows.t().mm(flat) if of_weight else None,
        rows.sum(0) if of_bias else None,
    )


def patch_fsdp() -> None:
    """Patches torch.distributed.fsdp and context_parallel, now or when a script imports them. Call once per process."""
    on_import("torch.distributed.fsdp", _patch_fsdp_package)
    on_import("torch.distributed.tensor.experimental", _refuse_context_parallel)


def _patch_fsdp_package(package: Any) -> None:
    """Makes FullyShardedDataParallel accept local ranks. If the device is named xla, fully_shard refuses it.

    Scripts pass `device_id=local_rank`, but a rank has one core here, whose index is 0.
    """
    kind = package.FullyShardedDataParallel
    original = kind.__init__

    @functools.wraps(original)
    def init(self: Any, *arguments: Any, **keywords: Any) -> None:
        where = keywords.get("device_id")
        if where is not None and (isinstance(where, int) or torch.device(where).type == device.name):
            keywords["device_id"] = torch.device(device.name, torch_module.current_device())
        original(self, *arguments, **keywords)

    kind.__init__ = init
    if device.name == "xla":
        package.fully_shard = _refusing(
            package.fully_shard,
            "fully_shard is not supported on xla, where torch leaves a DeviceMesh to torch_xla's SPMD; use the device "
            "name neuron (NEURONTOOLS_DEVICE=neuron), or FullyShardedDataParallel",
            lambda _arguments, keywords: getattr(keywords.get("mesh"), "device_type", device.name),
        )


def _refuse_context_parallel(package: Any) -> None:
    """Makes context_parallel refuse this device. torch has its attention only for CUDA, and not for the CPU either."""
    package.context_parallel = _refusing(
        package.context_parallel,
        f"context_parallel is not supported on {device.name}, because torch has its attention for CUDA only; use "
        "parallelize_module with SequenceParallel, or neuronx_distributed with sequence_parallel_enabled=True",
        lambda arguments, keywords: (*arguments, keywords.get("mesh"))[0].device_type,
    )


def _refusing(original: Callable[..., Any], text: str, device_type: Callable[[Any, Any], str]) -> Callable[..., Any]:
    """Returns a function that refuses this device. `device_type` gets the arguments of a call, and its keywords."""

    @functools.wraps(original)
    def guarded(*arguments: Any, **keywords: Any) -> Any:
        if device_type(arguments, keywords) == device.name:
            raise NotImplementedError(text)
        return original(*arguments, **keywords)

    return guarded
