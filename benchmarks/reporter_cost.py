"""What reporting costs a training process: the same loop of 1 ms steps with and without it, and each hook by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from timeit import repeat

from measuring import Figure, compile_sources, daemon, report

from neurontools.runtime import Model, Reporter

STEP_SECONDS = 1e-3
STEPS = 1500
ROUNDS = 12
CALLS = 50_000


def work(amount: int) -> None:
    """A step of training: computes in Python, so the GIL is held and a second thread is felt as much as can be."""
    total = 0
    for number in range(amount):
        total += number


def calibrated() -> int:
    """How much work takes a step's time on this machine."""
    amount = 1000
    while (seconds := min(repeat(lambda: work(amount), number=5, repeat=20)) / 5) < STEP_SECONDS / 2:
        amount *= 2
    return int(amount * STEP_SECONDS / seconds)


def plain_loop(amount: int) -> None:
    for _ in range(STEPS):
        work(amount)


def reporting_loop(amount: int, reporter: Reporter, model: Model) -> None:
    for _ in range(STEPS):
        with model.execution(core=0, flop=1000):
            work(amount)
        reporter.set_memory(0, "tensors_bytes", 4096)


def seconds_a_step(loop: Callable[[], None]) -> tuple[float, float]:
    """Wall-clock and vCPU time of all threads, a step."""
    wall, cpu = time.perf_counter(), time.process_time()
    loop()
    return (time.perf_counter() - wall) / STEPS, (time.process_time() - cpu) / STEPS


def nanoseconds(call: Callable[[], object]) -> float:
    """The time of one call, the least of several rounds."""
    return min(repeat(call, number=CALLS, repeat=7)) / CALLS * 1e9


def main() -> None:
    compile_sources()
    amount = calibrated()
    plain: list[tuple[float, float]] = []
    reporting: list[tuple[float, float]] = []
    with daemon("--simulate", "trn1.32xlarge") as running:
        environment = {"NEURON_RT_NUM_CORES": "2", "NEURONTOOLS_SOCKET": running.socket}
        for _ in range(ROUNDS):  # in turns: a slow moment of the machine hits both alike
            plain.append(seconds_a_step(lambda: plain_loop(amount)))
            with Reporter.attach(environment) as reporter:
                model = reporter.load_model("loop")
                reporting.append(seconds_a_step(lambda r=reporter, m=model: reporting_loop(amount, r, m)))  # type: ignore[misc]
        with Reporter.attach(environment) as reporter:
            model = reporter.load_model("hooks")
            begin_end = nanoseconds(lambda: model.end(model.begin(0), 1000))
            memory = nanoseconds(lambda: reporter.add_memory(0, "tensors_bytes", 1))
        after_close = nanoseconds(lambda: model.end(model.begin(0), 1000))
    clock = nanoseconds(lambda: (time.monotonic(), time.monotonic()))
    wall, plain_wall = median(each[0] for each in reporting), median(each[0] for each in plain)
    cpu, plain_cpu = median(each[1] for each in reporting), median(each[1] for each in plain)
    report(
        f"Reporting at about {1 / plain_wall:.0f} steps/s, an execution and a memory level each, {ROUNDS} rounds",
        [
            Figure("vCPU time of a step, reporting / not", cpu / plain_cpu, "ratio", "at most 1.01"),
            Figure("wall-clock time of a step, reporting / not", wall / plain_wall, "ratio", "at most 1.01"),
            Figure("vCPU time of a step, not reporting", plain_cpu * 1e6, "us"),
            Figure("begin and end of an execution, applied and reported", begin_end, "ns", "at most 2000"),
            Figure("add_memory, applied and reported", memory, "ns", "at most 1000"),
            Figure("begin and end in a forked child or after close", after_close, "ns"),
            Figure("two clock readings, which begin and end include", clock, "ns"),
        ],
    )


if __name__ == "__main__":
    main()
