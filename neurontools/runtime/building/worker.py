"""Makes the machine code of one graph: in a process of its own, at a low priority."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import torch

from neurontools.runtime.building import inductor
from neurontools.runtime.kernels import dropout, linear, normalization, probed
from neurontools.runtime.native.archive import Archive, InvalidArchive
from neurontools.runtime.native.segments import segments_of
from neurontools.runtime.programs import compiler_flags
from neurontools.runtime.programs.compile_cache import CompileCache
from neurontools.runtime.programs.compiled_graph import CompiledGraph
from neurontools.runtime.programs.numerics import Numerics
from neurontools.runtime.programs.program import Program
from neurontools.util.signals import set_parent_death_signal

_NICENESS = 5
_LONGEST_REASON = 300
_LONGEST_WAIT_SECONDS = 3600.0


def main() -> None:
    """`worker REQUEST RESULT`: reads the one, writes an archive to the other, and to the compile cache."""
    given, result = map(int, sys.argv[1:3])
    if not set_parent_death_signal(os.getppid(), signal.SIGKILL):
        return
    os.nice(_NICENESS)
    with os.fdopen(given, "rb") as file:
        file.seek(0)
        request: dict[str, Any] = json.load(file)
    for part in (dropout, normalization, linear, probed):
        part.kernels()
    compiled = CompiledGraph.from_json(request["graph"].encode())
    flags = compiler_flags.parse(request["flags"])
    cache = CompileCache({**request["environment"], "NEURON_RT_LOG_LEVEL": ""})
    cache.longest_wait_seconds = _LONGEST_WAIT_SECONDS
    key = request["key"]
    with cache.locked(compiled.graph_hash, flags, "machine-code.lock"):
        data = cache.machine_code(compiled.graph_hash, flags, key)
        if data is None or not _serves(data, compiled, request):
            data = _made(compiled, request).to_bytes()
            cache.store_machine_code(compiled.graph_hash, flags, key, data)
    with os.fdopen(result, "wb") as file:
        file.write(data)


def _serves(data: bytes, compiled: CompiledGraph, request: dict[str, Any]) -> bool:
    """Whether another rank has made it meanwhile."""
    try:
        archive = Archive.from_bytes(data, compiled.module, request["key"])
    except (InvalidArchive, ValueError, KeyError, TypeError):
        return False
    return bool(archive.refusal) or set(request["changing"]) <= set(archive.changing)


def _made(compiled: CompiledGraph, request: dict[str, Any]) -> Archive:
    scalars = [float.fromhex(value) if isinstance(value, str) else value for value in request["scalars"]]
    changing = set(request["changing"])
    torch.set_num_threads(request["threads"])
    program = Program(compiled, Numerics())
    segments = segments_of(compiled, changing)
    key = request["key"]
    try:
        objects = [inductor.shared_object(program, segment, scalars) for segment in segments]
    except Exception as error:  # whatever stops a compiler, the training goes on without it
        reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0][:_LONGEST_REASON]
        return Archive(compiled.module, key, refusal=f"torch's compiler refused it ({reason})")
    fixed = sorted({index for segment in segments for index in segment.fixed})
    return Archive(
        compiled.module,
        key,
        tuple(segments),
        tuple(objects),
        tuple((index, scalars[index]) for index in fixed),
        tuple(sorted(changing)),
    )


if __name__ == "__main__":
    main()
