"""The scenarios of synthetic load: what the invented processes do, step by step.

A scenario is a function that is called for every rank and every step, in order, and changes the rank. It may draw from
`rank.random` alone, so that the same seed gives the same load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sin
from random import Random

from neurond.load.rank import Rank
from neurontools.model import EccCounters

STEP_SECONDS = 0.25
_LATENCY_SECONDS = 0.05

Step = Callable[[Rank, float], None]  # rank, seconds since the start of the load


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named scenario: a line for --help, what a rank does in a step, and what happens to a device's ECC counters."""

    summary: str
    step: Step | None  # None: no processes at all
    ecc: Callable[[Random, float, EccCounters], EccCounters] | None = None  # called a step and device


def _steady(rank: Rank, now_seconds: float) -> None:
    if now_seconds == 0:
        rank.load_model(0.12)
        rank.hold_tensors(0.35)
    utilization = 0.9 + 0.05 * sin(now_seconds / 7 + rank.index) + rank.random.uniform(-0.02, 0.02)
    rank.execute(now_seconds, STEP_SECONDS, utilization, _LATENCY_SECONDS)


def _training_ramp(rank: Rank, now_seconds: float) -> None:
    """Weights arrive for 5 s, the compiler works until 15 s, then steps get faster until 60 s."""
    if now_seconds < 5:
        rank.load_model(0.12 * now_seconds / 5)
        return
    rank.load_model(0.12)
    if now_seconds < 15:
        return
    progress = min(1.0, (now_seconds - 15) / 45)
    rank.hold_tensors(0.1 + 0.3 * progress)
    utilization = 0.05 + 0.87 * progress + rank.random.uniform(-0.02, 0.02)
    rank.execute(now_seconds, STEP_SECONDS, max(0.0, utilization), _LATENCY_SECONDS * (3 - 2 * progress))


def _memory_leak(rank: Rank, now_seconds: float) -> None:
    """Tensors grow by 1 % of the HBM a second until it is full: allocation fails then, and the failures are counted."""
    _steady(rank, now_seconds)
    wanted_ratio, most_ratio = 0.2 + 0.01 * now_seconds, rank.most_tensors_ratio
    rank.hold_tensors(min(wanted_ratio, most_ratio))
    if wanted_ratio > most_ratio and now_seconds % 1 == 0:
        rank.errors = replace(rank.errors, runtime_total=rank.errors.runtime_total + 1)


def _stuck_core(rank: Rank, now_seconds: float) -> None:
    """After 10 s the first rank begins an execution that never ends; the others wait for it."""
    if now_seconds < 10:
        _steady(rank, now_seconds)
    elif rank.index == 0:
        if rank.stuck_since_seconds is None:
            rank.stuck_since_seconds = now_seconds
        rank.busy_seconds += STEP_SECONDS


def _ecc_burst(random: Random, now_seconds: float, ecc: EccCounters) -> EccCounters:
    """Bursts of 5 s every 30 s: corrected errors in HBM on one device in four, and now and then an uncorrected one."""
    if now_seconds < 10 or (now_seconds - 10) % 30 >= 5 or random.random() > 0.25:
        return ecc
    uncorrected = 1 if random.random() < 0.02 else 0
    return replace(
        ecc,
        mem_corrected_total=(ecc.mem_corrected_total or 0) + random.randint(1, 40),
        mem_uncorrected_total=(ecc.mem_uncorrected_total or 0) + uncorrected,
    )


SCENARIOS: dict[str, Scenario] = {
    "idle": Scenario("no processes", None),
    "steady": Scenario("a rank a core, about 90 % busy", _steady),
    "training-ramp": Scenario("load, compile, then ever faster steps", _training_ramp),
    "memory-leak": Scenario("steady, with tensors that grow until HBM is full", _memory_leak),
    "stuck-core": Scenario("steady, then one execution that never ends", _stuck_core),
    "ecc-burst": Scenario("steady, with bursts of ECC errors", _steady, _ecc_burst),
}
