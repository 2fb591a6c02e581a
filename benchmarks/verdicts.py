"""Measures findings in a tick of the daemon, on trn1.32xlarge with 32 processes. Limits: 0.05 % of a core, 0.5 ms.

Findings add rules, log lines and serialized bytes to each tick. The reference is the rest of a tick: the rates of the
same snapshots, and their bytes.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from neurond.snapshots.rates import RateCalculator
from neurond.snapshots.store import HealthMessageCache
from neurond.verdicts.rule_evaluator import FindingLogger, RuleEvaluator

from neurontools.model import Health
from neurontools.rpc import neuron_pb2
from neurontools.rpc.convert import to_message
from tests.harness.scenario_host import ScenarioHost

SCENARIOS = ("steady", "stuck-core", "ecc-burst", "memory-leak")
SECONDS = 600


def main() -> None:
    logging.disable()
    print(f"CPU a tick of a second, mean over {SECONDS} ticks (asked for: 0.50 ms, 0.05 % of a core)")
    for scenario in SCENARIOS:
        measure(scenario)


def measure(scenario: str) -> None:
    host = ScenarioHost("trn1.32xlarge", scenario)
    bare = [replace(host.at(float(second)), health=None) for second in range(1, SECONDS + 1)]
    judge, announcer = RuleEvaluator(), FindingLogger()
    judged, spent = [], []
    for one in bare:
        began = time.thread_time()
        found = judge.evaluate(one)
        announcer.log_new(found)
        spent.append(time.thread_time() - began)
        judged.append(found)
    sample = range(0, SECONDS, 10)
    more = cpu_seconds(lambda: bytes_of([one.health for one in judged if one.health is not None])) / SECONDS
    before = cpu_seconds(lambda: [to_message(bare[at]).SerializeToString() for at in sample]) / len(sample)
    rates = RateCalculator()
    derived = cpu_seconds(lambda: [rates.derive(one, processes_read=True) for one in bare]) / SECONDS
    judging = statistics.fmean(spent)
    whole, reference = judging + more, derived + before
    print(
        f"{scenario:>12}: {whole * 1e3:.3f} ms = {whole:.4%} of a core: judging {judging * 1e3:.3f} (median "
        f"{statistics.median(spent) * 1e3:.3f}), bytes {more * 1e3:.3f}; "
        f"reference, rates and bytes: {reference * 1e3:.3f} ms; ratio {whole / reference:.2f}"
    )


def bytes_of(verdicts: list[Health]) -> None:
    """Serializes the findings as the store does."""
    known = HealthMessageCache()
    for health in verdicts:
        message = neuron_pb2.Snapshot()
        message.health.CopyFrom(known.message(health))
        message.SerializeToString()


def cpu_seconds(work: Callable[[], object]) -> float:
    """Returns the CPU time of a function: the minimum of five calls."""
    taken = []
    for _ in range(5):
        began = time.thread_time()
        work()
        taken.append(time.thread_time() - began)
    return min(taken)


if __name__ == "__main__":
    main()
