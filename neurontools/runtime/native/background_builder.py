"""Gets machine code from the compile cache, or builds it in a background process while the training continues."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from neurontools.runtime.counting.metrics import metrics
from neurontools.runtime.native.segments import LARGEST_BYTES, Archive, InvalidArchive
from neurontools.runtime.programs.compile_cache import CompileCache
from neurontools.runtime.programs.compiled_graph import CompiledGraph
from neurontools.runtime.programs.compiler import CC_FLAGS, CompilerFlags
from neurontools.runtime.reporting.stderr_lines import warn_once

_ROOT = Path(__file__).parents[3]
_TRAINING_PREFIXES = ("NEURON", "XLA_", "TORCH", "RANK", "LOCAL_", "WORLD_", "MASTER_")


def compiler_of(environment: Mapping[str, str]) -> str | None:
    """Returns the path of the C++ compiler that torch's inductor would use, or None if it is missing."""
    named = shlex.split(environment.get("CXX", "")) or ["g++"]
    return shutil.which(named[0], path=environment.get("PATH"))


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A running build. The build process writes its archive to the file descriptor `result`."""

    module: str
    key: str
    process: subprocess.Popen[bytes]
    result: int


class BackgroundBuilder:
    """Runs builds of machine code for this process, one at a time. Callers hold the runtime's lock."""

    def __init__(self, environment: Mapping[str, str], cache: CompileCache, flags: CompilerFlags) -> None:
        self.environment = environment
        self.cache = cache
        self.flags = flags
        self._running: BuildRequest | None = None
        self._pid = os.getpid()

    @property
    def is_free(self) -> bool:
        """Whether a build may start: no other build is running, and this process is not a fork of the training."""
        return self._running is None and self._pid == os.getpid()

    def find(self, compiled: CompiledGraph, key: str) -> Archive | None:
        data = self.cache.machine_code(compiled.graph_hash, self.flags, key)
        return None if data is None else _parse_archive(data, compiled.module, key)

    def begin(
        self, compiled: CompiledGraph, key: str, scalars: Sequence[Any], changing: Collection[int]
    ) -> BuildRequest | None:
        """Starts the build process. Returns None if there is no C++ compiler, or if the process can't start.

        `scalars` has the values of all scalars in one execution. `changing` has the indices of scalars that differ
        between executions.
        """
        if compiler_of(self.environment) is None:
            warn_once(
                "no C++ compiler",
                "--optlevel 3: no C++ compiler (g++) was found, so graphs run without machine code; install g++ or "
                "set CXX",
            )
            return None
        request = json.dumps(
            {
                "graph": compiled.to_json().decode(),
                "key": key,
                "threads": torch.get_num_threads(),
                "scalars": [value.hex() if isinstance(value, float) else value for value in scalars],
                "changing": sorted(changing),
                "environment": {n: v for n, v in self.environment.items() if n.startswith("NEURON")},
                "flags": self.environment.get(CC_FLAGS, ""),
            }
        )
        try:
            with contextlib.ExitStack() as stack:
                result = os.memfd_create("result", os.MFD_CLOEXEC)
                undo = stack.enter_context(contextlib.ExitStack())
                undo.callback(os.close, result)
                given = os.memfd_create("request", os.MFD_CLOEXEC)
                stack.callback(os.close, given)
                with os.fdopen(os.dup(given), "wb") as file:
                    file.write(request.encode())
                process = subprocess.Popen(
                    [sys.executable, "-m", "neurontools.runtime.native.supervisor", str(given), str(result)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(given, result),
                    env=_compiler_environment(self.environment),
                    start_new_session=True,
                    cwd="/",
                )
                undo.pop_all()
        except OSError as error:
            warn_once("no machine code", f"--optlevel 3: the compiler's process can't start ({error.strerror})")
            return None
        metrics.increment("MachineCodeBuild")
        self._running = BuildRequest(compiled.module, key, process, result)
        return self._running

    def result(self, request: BuildRequest) -> Archive | None:
        """Returns the archive of a build, or None while the build is running.

        If the build process failed, the archive has no code, and its `refusal` is the reason.
        """
        if self._pid != os.getpid() or request.process.poll() is None:
            return None
        self._running = None
        if request.process.stdin is not None:
            request.process.stdin.close()
        try:
            data = os.pread(request.result, LARGEST_BYTES, 0)
        finally:
            os.close(request.result)
        refusal = f"its compiler ended with status {request.process.returncode}"
        found = _parse_archive(data, request.module, request.key)
        return found or Archive(request.module, request.key, refusal=refusal)


def _parse_archive(data: bytes, module: str, key: str) -> Archive | None:
    try:
        return Archive.from_bytes(data, module, key)
    except (InvalidArchive, ValueError, KeyError, TypeError):
        return None


def _compiler_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of the build process: the script's environment without its training variables.

    PYTHONPATH begins with the directory of this package, so that the build process imports the same modules.
    """
    variables = {n: v for n, v in environment.items() if not n.startswith(_TRAINING_PREFIXES)}
    paths = [str(_ROOT), *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
    own = {"PYTHONPATH": os.pathsep.join(paths), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    return variables | own
