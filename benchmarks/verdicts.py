"""What verdicts cost the daemon a tick, on trn1.32xlarge with 32 processes. Asked for: 0.05 % of a core, 0.5 ms a tick.

Measured is all that they add to a tick of a second: the jobs of processes, judging, what the log is told, and the bytes
of the verdicts. The reference in the same run is what a tick did before: rates of the same snapshots and their bytes.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from neurond.attribution.jobs import Jobs
from neurond.snapshots.rates import Rates
from neurond.verdicts.announcer import Announcer
from neurond.verdicts.judge import Judge

from neurontools.rpc.convert import to_message
from tests.harness.scenario_host import ScenarioHost

SCENARIOS = ("steady", "stuck-core", "ecc-burst", "memory-leak")
SECONDS = 600
ASKED_SECONDS = 0.0005


def main() -> None:
    logging.disable()
    print(
        f"CPU a tick of a second, mean over {SECONDS} ticks (asked for: {ASKED_SECONDS * 1e3:.2f} ms, 0.05 % of a core)"
    )
    for scenario in SCENARIOS:
        host = ScenarioHost("trn1.32xlarge", scenario)
        bare = [
            replace(
                host.at(float(second)),
                health=None,
            )
            for second in range(1, SECONDS + 1)
        ]
        bare = [replace(one, processes=tuple(replace(process, job=None) for process in one.processes)) for one in bare]
        jobs, judge, announcer = Jobs(), Judge(), Announcer()
        judged = []
        spent: list[float] = []
        for one in bare:
            began = time.thread_time()
            found = judge.judge(jobs.assign(one))
            announcer.tell(found)
            spent.append(time.thread_time() - began)
            judged.append(found)
        sample = range(0, SECONDS, 20)
        bytes_before = cpu_seconds(lambda: [to_message(bare[at]).SerializeToString() for at in sample]) / len(sample)
        bytes_after = cpu_seconds(lambda: [to_message(judged[at]).SerializeToString() for at in sample]) / len(sample)
        rates = Rates()
        derived = cpu_seconds(lambda: [rates.derive(one, processes_read=True) for one in bare]) / SECONDS
        whole = statistics.fmean(spent) + max(0.0, bytes_after - bytes_before)
        print(
            f"{scenario:>12}: {whole * 1e3:.3f} ms = {whole:.4%} of a core (judging {statistics.fmean(spent) * 1e3:.3f}, "
            f"undisturbed {min(spent) * 1e3:.3f}, bytes {(bytes_after - bytes_before) * 1e3:.3f}); "
            f"reference, rates and bytes: {(derived + bytes_before) * 1e3:.3f} ms, ratio "
            f"{whole / (derived + bytes_before):.2f}"
        )


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of a piece of work, the least of five."""
    taken = []
    for _ in range(5):
        began = time.thread_time()
        work()
        taken.append(time.thread_time() - began)
    return min(taken)


if __name__ == "__main__":
    main()
