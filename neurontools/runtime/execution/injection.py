"""Applies injected faults: executions and collectives fail, hang, are late or have wrong results."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, compress, pairwise
from typing import Any

import torch

from neurontools.driver.environment import VISIBLE_CORES
from neurontools.driver.neuron_runtime import DEFAULT_TIMEOUT_SECONDS, execution_failure_lines
from neurontools.faults.kinds import LINK_BYTES_PER_SECOND, FaultEffect
from neurontools.runtime.execution.graph_description import COLLECTIVE
from neurontools.runtime.execution.policy import ExecutionFailed
from neurontools.runtime.programs.program import Program
from neurontools.runtime.reporting.control_channel import ArmedFault, ArmedFaults
from neurontools.runtime.reporting.stderr_lines import write_stderr_line
from neurontools.runtime.tensors.buffers import Core, Tensor
from neurontools.util.version import __version__

collective_hooks: list[Callable[[], None]] = []
"""Functions that apply faults before each collective; usually none. Callers hold the runtime's lock."""
transfer_hooks: list[Callable[[int, Callable[[], Collection[int]]], None]] = []
"""Functions that slow down each collective after its end; usually none. Callers hold the runtime's lock.

A function receives the bytes of the collective, and a function that returns the devices of the other ranks.
"""
_IN_COLLECTIVES = (FaultEffect.HANGS_IN_COLLECTIVE, FaultEffect.IS_LATE_IN_COLLECTIVES)


def apply_fault(program: Program, core: Core, faults: ArmedFaults, timeout_seconds: float | None) -> FaultyRun | None:
    """Returns a run of the next execution with its injected faults. None if no fault applies."""
    due_faults = faults.faults_for_execution(core.local_index)
    if not due_faults:
        return None
    timeout = DEFAULT_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
    return FaultyRun(program, core.local_index, faults, due_faults, timeout)


@dataclass(frozen=True, slots=True)
class FaultyRun:
    """Runs a program once with the injected faults of one execution."""

    program: Program
    core: int
    faults: ArmedFaults
    due_faults: list[ArmedFault]
    timeout_seconds: float

    def run(
        self, inputs: Sequence[Tensor], scalars: Sequence[Any], hosts: Sequence[Tensor], generator: torch.Generator
    ) -> list[Tensor]:
        """Runs the program with its injected faults.

        Raises ExecutionFailed if a fault makes the execution fail, either before the program runs or in a collective.
        """
        return self._run(partial(self.program.run, inputs, scalars, hosts, generator), inputs)

    def run_timed(
        self, inputs: Sequence[Tensor], scalars: Sequence[Any], hosts: Sequence[Tensor], generator: torch.Generator
    ) -> tuple[list[Tensor], tuple[int, ...]]:
        """Like `run`, but also returns the times of `Program.run_timed`. A slow core delays all but collectives."""
        times: tuple[int, ...] = ()

        def run_program() -> list[Tensor]:
            nonlocal times
            outputs, times = self.program.run_timed(inputs, scalars, hosts, generator)
            return outputs

        outputs = self._run(run_program, inputs)
        delay_ns = time.perf_counter_ns() - times[-1]
        durations_ns = [after - before for before, after in pairwise(times)]
        is_compute = [each.operator.name != COLLECTIVE for each in self.program.compiled.instructions]
        compute_ns = sum(compress(durations_ns, is_compute))
        factor = 1 + delay_ns / max(1, compute_ns)
        slowed_ns = (int(each * factor) if slow else each for each, slow in zip(durations_ns, is_compute, strict=True))
        return outputs, (*accumulate(slowed_ns, initial=times[0]),)

    def _run(self, run_program: Callable[[], list[Tensor]], inputs: Sequence[Tensor]) -> list[Tensor]:
        for fault in self.due_faults:
            if fault.kind.effect in (*_IN_COLLECTIVES, FaultEffect.HAS_SLOW_LINK):
                continue
            self.faults.report_begin(fault, self.core)
            if fault.kind.effect is FaultEffect.FAILS:
                raise self._failure(fault)
            if fault.kind.effect is FaultEffect.HANGS and not fault.over.wait(self.timeout_seconds):
                raise self._failure(fault)
        began = time.perf_counter()
        collective_hooks[:] = [
            partial(self._in_collective, fault) for fault in self.due_faults if fault.kind.effect in _IN_COLLECTIVES
        ]
        transfer_hooks[:] = [
            partial(self._after_transfer, fault)
            for fault in self.due_faults
            if fault.kind.effect is FaultEffect.HAS_SLOW_LINK
        ]
        try:
            outputs = run_program()
        finally:
            collective_hooks.clear()
            transfer_hooks.clear()
        seconds = time.perf_counter() - began
        for fault in self.due_faults:
            if fault.kind.effect is FaultEffect.HAS_NAN:
                self._write_nan(fault, [*outputs, *self._written(inputs)])
            elif fault.kind.effect is FaultEffect.HAS_FLIPPED_BITS:
                self._flip(fault, [*outputs, *self._written(inputs)])
            elif fault.kind.effect is FaultEffect.IS_SLOW:
                fault.over.wait(seconds * ((fault.amount or 1.0) - 1.0))
        return outputs

    def _in_collective(self, fault: ArmedFault) -> None:
        """Applies a fault at the start of a collective: a delay of `amount` ms, or a hang until the time-out."""
        self.faults.report_begin(fault, self.core)
        if fault.kind.effect is FaultEffect.IS_LATE_IN_COLLECTIVES:
            fault.over.wait((fault.amount or 0.0) * 1e-3)
        elif not fault.over.wait(self.timeout_seconds):
            raise self._failure(fault)

    def _after_transfer(self, fault: ArmedFault, nbytes: int, peer_devices: Callable[[], Collection[int]]) -> None:
        """Makes a transfer over the fault's link take `amount` times as long. Other transfers stay as they are.

        The usual time is calculated from the bytes, because a measured time would include the wait for other ranks.
        """
        device, _ = fault.places[self.core]
        other_ends = fault.devices - {device}
        peers = frozenset(peer_devices()) - {device}
        if peers & other_ends if other_ends else peers:
            self.faults.report_begin(fault, self.core)
            fault.over.wait(nbytes / LINK_BYTES_PER_SECOND * ((fault.amount or 1.0) - 1.0))

    def _flip(self, fault: ArmedFault, results: Sequence[Tensor]) -> None:
        """Flips random bits of a random result. The same seed flips the same bits."""
        possible = [value for value in results if value.numel() and value.is_contiguous()]
        if possible:
            value = fault.random.choice(possible)
            octets = value.view(-1).view(torch.uint8)
            for _ in range(int(fault.amount or 1)):
                at = fault.random.randrange(octets.numel())
                octets[at] = int(octets[at]) ^ (1 << fault.random.randrange(8))
        self.faults.acknowledge(fault, self.core)

    def _write_nan(self, fault: ArmedFault, results: Sequence[Tensor]) -> None:
        """Writes NaN into the first result that can represent NaN, and logs the error as real hardware does."""
        for value in results:
            if value.is_floating_point() and value.numel() and value.dtype.itemsize > 1:
                value.view(-1)[:1].fill_(float("nan")) if value.is_contiguous() else value.fill_(float("nan"))
                break
        self._log(fault)
        self.faults.acknowledge(fault, self.core)

    def _written(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        compiled = self.program.compiled
        written = {number for instruction in compiled.instructions for number in instruction.written}
        return [value for number, value in zip(compiled.inputs, inputs, strict=True) if number in written]

    def _failure(self, fault: ArmedFault) -> ExecutionFailed:
        self._log(fault)
        self.faults.acknowledge(fault, self.core)
        return ExecutionFailed(fault.kind.status, f"{self._causes(fault)[-1][1]} [injected fault {fault.number}]")

    def _causes(self, fault: ArmedFault) -> list[tuple[str, str]]:
        device, core = fault.places[self.core]
        facts = {
            "device": device,
            "core": core,
            "engine": 0,
            "timeout_ms": round(self.timeout_seconds * 1e3),
            "model": self.program.compiled.module,
            "collectives": sum(each.operator.name == COLLECTIVE for each in self.program.compiled.instructions),
        }
        return [(line.function, line.text.format_map(facts)) for line in fault.kind.log]

    def _log(self, fault: ArmedFault) -> None:
        device, core = fault.places[self.core]
        facts = (
            ("Injected", f"fault {fault.number} ({fault.kind.name}) on Neuron Device {device} NC {core}"),
            ("NRT version", f"neurontools {__version__}, simulated"),
            ("Kernel", f"{platform.system()} {platform.release()}"),
            ("Nodename", platform.node()),
            ("Visible cores", os.environ.get(VISIBLE_CORES, "N/A")),
        )
        for line in execution_failure_lines(self._causes(fault), fault.kind.status, facts, os.getpid(), time.time()):
            write_stderr_line(line)
