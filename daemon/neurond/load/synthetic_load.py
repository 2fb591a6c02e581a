"""Runs a scenario: enters its invented processes into the ledger and reports for them."""

from __future__ import annotations

import contextlib
import time
from random import Random

from neurond.load.rank import Rank
from neurond.load.scenarios import SCENARIOS, STEP_SECONDS
from neurond.ownership.holding import Holding
from neurond.ownership.ledger import Ledger, OutOfDeviceMemory
from neurond.system.processes import ProcessFacts
from neurontools.driver.neuron_runtime import CoreRequest
from neurontools.model import EccCounters, Job

# Above the highest PID Linux can give (2^22), so an invented process is never taken for a real one.
FIRST_PID = 2**22 + 1
RUNTIME_VERSION = "synthetic"

# Whose the processes are, by the seed: names that nobody real has, and which fit a column of nine cells.
USERS = ("synth-ada", "synth-ben", "synth-eva", "synth-kim", "synth-mia")


class SyntheticLoad:
    """A scenario on the cores of a ledger, a process for each logical core it uses.

    The state depends on the scenario, the seed and the whole steps since the start alone.
    """

    def __init__(
        self,
        ledger: Ledger,
        scenario: str,
        *,
        seed: int = 0,
        neuroncores: int | None = None,
        peak_flops_per_core: float = 0.0,
        started_at_seconds: float | None = None,
        started_at_unix_seconds: float | None = None,
    ) -> None:
        self.scenario = scenario
        self._user = USERS[seed % len(USERS)]
        self._scenario = SCENARIOS[scenario]
        self._ledger = ledger
        self._started_at_seconds = time.monotonic() if started_at_seconds is None else started_at_seconds
        self._started_at_unix_seconds = time.time() if started_at_unix_seconds is None else started_at_unix_seconds
        self._steps = 0
        shape = ledger.shape
        lnc = shape.default_lnc
        available = shape.logical_core_count(lnc)
        count = min(neuroncores or available, available) if self._scenario.step else 0
        share_bytes = shape.stack_bytes * lnc // shape.cores_per_stack
        self._ranks = {
            self._enter(index): Rank(index, Random(f"{seed} {index}"), share_bytes, peak_flops_per_core * lnc)  # noqa: S311
            for index in range(count)
        }
        self._ecc = [EccCounters(0, 0, 0, 0, 0) for _ in range(shape.device_count)]
        self._ecc_random = [Random(f"{seed} device {index}") for index in range(shape.device_count)]  # noqa: S311

    def ecc(self, device_index: int) -> EccCounters:
        """The ECC counters of a device."""
        return self._ecc[device_index]

    def facts(self, holding: Holding) -> ProcessFacts:
        """What the operating system would tell of an invented process."""
        rank = self._ranks[holding.token].index
        return ProcessFacts(
            user=self._user,
            command=f"[synthetic load {self.scenario}] rank {rank} of {len(self._ranks)}",
            started_at_unix_seconds=self._started_at_unix_seconds,
            job=Job(f"synthetic load {self.scenario}", rank, len(self._ranks)),
        )

    def advance(self, now_seconds: float) -> None:
        """Brings the load up to `now_seconds` of CLOCK_MONOTONIC and reports for every process."""
        due = int((now_seconds - self._started_at_seconds) / STEP_SECONDS) + 1
        for number in range(self._steps, due):
            self._step(number * STEP_SECONDS)
        self._steps = max(self._steps, due)
        elapsed_seconds = (self._steps - 1) * STEP_SECONDS
        for token, rank in self._ranks.items():
            report = rank.report(
                elapsed_seconds, self._started_at_unix_seconds, self._started_at_seconds + elapsed_seconds
            )
            # A real process may share the HBM stack and leave no room; the rank then keeps what it had.
            with contextlib.suppress(OutOfDeviceMemory):
                self._ledger.report(token, report)

    def _step(self, now_seconds: float) -> None:
        step, ecc = self._scenario.step, self._scenario.ecc
        if step is not None:
            for rank in self._ranks.values():
                step(rank, now_seconds)
        if ecc is not None:
            self._ecc = [
                ecc(random, now_seconds, before) for random, before in zip(self._ecc_random, self._ecc, strict=True)
            ]

    def _enter(self, index: int) -> str:
        token = f"synthetic {index}"
        self._ledger.enter(token, FIRST_PID + index, None, self._started_at_unix_seconds, synthetic=True)
        self._ledger.attach(token, CoreRequest(index, 1), f"synthetic-{index}", RUNTIME_VERSION)
        return token
