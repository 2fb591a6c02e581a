"""Installs the runtime in this process and in processes that it spawns or sends tensors to, and runs scripts."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.forkserver
import multiprocessing.spawn
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from neurontools.driver.environment import SUMMARY_DIRECTORY, is_shapes_only
from neurontools.runtime.launch import import_hook
from neurontools.runtime.launch.device_name import DEVICE_VARIABLE, choose_device_name, explain_other_name
from neurontools.runtime.launch.torch_version import require_torch, warn_of_other_torch
from neurontools.util.errors import UserError
from neurontools.util.signals import dropping_signals
from neurontools.util.terminal import escape_controls

TYPE_CHECKING = False  # importing typing.TYPE_CHECKING would cost several milliseconds
if TYPE_CHECKING:
    from torch import Tensor


def install_runtime(
    environment: Mapping[str, str] = os.environ,
    script: str | Path | bytes | None = None,
    *,
    takes_cores_now: bool = True,
) -> None:
    """Registers the device and makes torch_xla importable. A second call does nothing.

    The content of `script`, a path or the source itself, decides the device name (see
    `neurontools.runtime.launch.device_name`). Unless `takes_cores_now`, the first use of the device takes the cores.
    """
    require_torch()
    import_hook.install_finder(environment)
    import_hook.is_installing = True
    try:
        import torch

        warn_of_other_torch(torch.__version__)  # warns before imports that may fail with this torch
        from neurontools.runtime.execution.shapes_only import create_parameters_on_device
        from neurontools.runtime.launch.device_registration import (
            before_report_hooks,
            is_registered,
            register_device,
        )
        from neurontools.runtime.launch.summary import AdviceReporter, SummaryFile
        from neurontools.runtime.reporting.process_end import run_before_immediate_exit
        from neurontools.runtime.tensors.device import device
        from neurontools.runtime.torch_device.storage_patches import patch_tensor_sharing
    finally:
        import_hook.is_installing = False

    if is_registered():
        return
    if script is None:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
    choice = choose_device_name(environment, script, sys.argv[1:])
    register_device(choice.name, environment)
    if choice.name == "neuron":  # accelerate and transformers then use torch.neuron instead of torch_xla
        os.environ.setdefault("USE_TORCH_XLA", "0")
    explain_other_name(choice)
    patch_tensor_sharing(receive_tensor)
    run_before_immediate_exit()
    before_report_hooks.append(AdviceReporter(environment))
    _patch_start_processes(environment)
    _remove_lightning_launchers(environment)
    if takes_cores_now and not import_hook.is_spawned_worker:
        device.cores  # noqa: B018  (takes the cores now, so that the tools show the process from its start)
    if is_shapes_only(environment):
        create_parameters_on_device(torch.device(device.name))
    _hook_spawned_processes(device.name)
    directory = environment.get(SUMMARY_DIRECTORY)
    if directory:
        SummaryFile(Path(directory)).start()


_FIRST_IMPORT = "neurontools.runtime.startup.spawned_worker"


def _hook_spawned_processes(name: str) -> None:
    """Makes processes that multiprocessing spawns, and its forkserver, import the module `_FIRST_IMPORT` first."""
    original = multiprocessing.spawn.get_command_line
    server: Any = multiprocessing.forkserver.ForkServer
    ensure_running = server.ensure_running

    def get_command_line(**keywords: object) -> list[str]:
        command = original(**keywords)
        position = command.index("-c") + 1 if "-c" in command else 0
        if position:
            command[position] = (
                f"import os, {_FIRST_IMPORT}; os.environ.setdefault('{DEVICE_VARIABLE}', '{name}'); "
                + command[position]
            )
        return command

    def ensure_running_with_device(self: Any) -> None:
        # In newer Pythons, the server imports the script before all other modules, and it would lack the device.
        # Without `__main__` in this list, each worker imports the script itself, after the module `_FIRST_IMPORT`.
        others = [each for each in self._preload_modules if each not in (_FIRST_IMPORT, "__main__")]
        self._preload_modules = [_FIRST_IMPORT, *others]
        with _environment_default(DEVICE_VARIABLE, name):
            ensure_running(self)

    multiprocessing.spawn.get_command_line = get_command_line
    server.ensure_running = ensure_running_with_device


@contextlib.contextmanager
def _environment_default(variable: str, value: str) -> Iterator[None]:
    """Sets an environment variable, for processes that start meanwhile, unless it is set."""
    if variable in os.environ:
        yield
        return
    os.environ[variable] = value
    try:
        yield
    finally:
        os.environ.pop(variable, None)


def _patch_start_processes(environment: Mapping[str, str]) -> None:
    """Replaces torch's start_processes by a function that first gives this process's cores back. Call it once.

    Each worker then takes a core by its local rank at its first use of the device. If a tensor of this process is on a
    core, this process keeps its cores.
    """
    import torch.multiprocessing

    from neurontools.runtime.launch.device_registration import release_cores

    # The attribute torch.multiprocessing.spawn is a function, so the module of this name is taken from sys.modules.
    module: Any = sys.modules["torch.multiprocessing.spawn"]
    original = module.start_processes

    @functools.wraps(original)
    def start_processes(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
        *rest: Any,
        **named: Any,
    ) -> Any:
        release_cores()
        directory = environment.get(SUMMARY_DIRECTORY)
        if directory and start_method == "fork":
            fn = functools.partial(_run_forked_worker, directory, os.getpid(), fn)
        return original(fn, args, nprocs, join, daemon, start_method, *rest, **named)

    module.start_processes = start_processes
    torch.multiprocessing.start_processes = start_processes


def _run_forked_worker(directory: str, parent_pid: int, fn: Callable[..., Any], *arguments: Any) -> Any:
    if os.getpid() != parent_pid:
        from neurontools.runtime.launch.summary import SummaryFile

        SummaryFile(Path(directory)).start()
    return fn(*arguments)


_STRATEGIES = (
    ("fabric", "xla", "XLAStrategy"),
    ("fabric", "xla_fsdp", "XLAFSDPStrategy"),
    ("pytorch", "xla", "XLAStrategy"),
)


def _remove_lightning_launchers(environment: Mapping[str, str]) -> None:
    """Keeps Lightning's XLA strategies from starting workers in a process that torchrun or neuron-run started.

    By default, these strategies always start workers. A worker of torchrun would start another worker and wait for it.
    Without a launcher, the strategies train in this process, and `Fabric.launch()` needs no function. Call this once.
    """
    from neurontools.runtime.torch_device.torch_patches import on_import

    for part, module, strategy in _STRATEGIES:
        change = _without_launcher(strategy, environment)
        for package in (f"lightning.{part}", {"fabric": "lightning_fabric", "pytorch": "pytorch_lightning"}[part]):
            on_import(f"{package}.strategies.{module}", change)


def _without_launcher(strategy: str, environment: Mapping[str, str]) -> Callable[[Any], None]:
    def change(module: Any) -> None:
        launcher_strategy = getattr(module, strategy, None)
        if launcher_strategy is None:
            return
        configure = launcher_strategy._configure_launcher

        def configure_launcher(self: Any) -> None:
            if "RANK" not in environment:
                configure(self)

        launcher_strategy._configure_launcher = configure_launcher

    return change


def receive_tensor(value: Tensor, where: str, requires_grad: bool, is_parameter: bool) -> Tensor:
    """Moves a tensor from another process to this process's device. Takes cores if this process has none."""
    install_runtime()
    import torch

    result = value.to(torch.device(where))
    return torch.nn.Parameter(result, requires_grad) if is_parameter else result.requires_grad_(requires_grad)


def run_script(script: str, arguments: list[str]) -> None:
    """Runs a Python file as `python script.py` does, with the device installed."""
    path = Path(script)
    sys.argv = [script, *arguments]
    sys.path[0] = str(path.resolve().parent)
    install_runtime(script=path)
    source = path.read_bytes()
    if b"\0" in source:  # an archive of Python files, or compiled code
        runpy.run_path(script, run_name="__main__")
    else:
        _run_main(source, script)


def run_source(source: bytes, arguments: list[str]) -> None:
    """Runs the source of a script as `python -` does, with the device installed."""
    sys.argv = ["-", *arguments]
    sys.path[0] = ""
    install_runtime(script=source)
    _run_main(source, None)


def _run_main(source: bytes, script: str | None) -> None:
    """Runs source code as the module `__main__`, which stays there for pickling and for the exit handlers.

    Tracebacks and profiles name the script as the command line does.
    """
    module = sys.modules["__main__"] = ModuleType("__main__")
    if script is not None:
        module.__file__ = os.path.abspath(script)  # noqa: PTH100  (resolve() would follow links)
        module.__loader__ = SourceFileLoader("__main__", module.__file__)
    exec(compile(source, script or "<stdin>", "exec", dont_inherit=True), vars(module))  # noqa: S102


def hide_launcher_frames() -> None:
    """Makes sys.excepthook leave out the frames of this launcher and of runpy that come before those of the script."""
    shown = sys.excepthook
    package = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        first = traceback
        while first is not None and (
            first.tb_frame.f_code.co_filename.startswith(package) or first.tb_frame.f_globals.get("__name__") == "runpy"
        ):
            first = first.tb_next
        # A second Ctrl-C while Python writes the traceback would make it write "lost sys.stderr" instead.
        with dropping_signals():
            # Without a frame of the script, the error is the launcher's own, and its frames are of use.
            shown(kind, error.with_traceback(first or traceback), first or traceback)

    sys.excepthook = show


def require_module(module: str) -> None:
    """Puts the current directory first in `sys.path`, as `python -m` does. Raises UserError for a missing module."""
    if sys.path and sys.path[0] != "":
        sys.path[0] = str(Path.cwd())
    try:
        found = find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None:  # UserError prints one line, runpy would print a traceback
        raise UserError(f"no module named {escape_controls(module)}; give one that Python finds from here")


def run_module(module: str, arguments: list[str]) -> None:
    """Runs a module as `python -m module` does, with the device installed."""
    sys.argv = [module, *arguments]
    install_runtime()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
