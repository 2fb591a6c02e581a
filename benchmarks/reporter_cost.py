"""Measures reporting in a training process: a loop of 1 ms steps with and without it, and each hook alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median, quantiles
from timeit import repeat

from measuring import Figure, compile_sources, daemon, report

from neurontools.runtime import LoadedModel, Reporter

STEP_SECONDS = 1e-3
STEPS = 500  # steps of a round; each round begins with a report, more often than in training
ROUNDS = 40
CALLS = 50_000
Pair = tuple[float, float]


def work(amount: int) -> None:
    """A step that computes in Python: it holds the GIL, so a second thread has the largest effect."""
    total = 0
    for number in range(amount):
        total += number


def calibrated() -> int:
    """Returns the amount for which `work` takes STEP_SECONDS on this host."""
    amount = 20_000
    seconds = min(repeat(lambda: work(amount), number=5, repeat=50)) / 5
    return int(amount * STEP_SECONDS / seconds)


def plain_loop(amount: int) -> None:
    for _ in range(STEPS):
        work(amount)


def reporting_loop(amount: int, reporter: Reporter, model: LoadedModel) -> None:
    for _ in range(STEPS):
        with model.execution(core=0, flop=1000):
            work(amount)
        reporter.set_memory(0, "tensors_bytes", 4096)


def seconds_a_step(loop: Callable[[], None]) -> Pair:
    """Returns the wall and vCPU seconds of a step, over all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    loop()
    return (time.perf_counter() - wall) / STEPS, (time.process_time() - cpu) / STEPS


def nanoseconds(call: Callable[[], object]) -> float:
    """Returns the time of one call: the minimum of several rounds."""
    return min(repeat(call, number=CALLS, repeat=7)) / CALLS * 1e9


def main() -> None:
    compile_sources()
    amount = calibrated()
    with daemon("--simulate", "trn1.32xlarge") as running:
        environment = {"NEURON_RT_NUM_CORES": "2", "NEURONTOOLS_SOCKET": running.socket}
        rounds = [one_round(amount, environment, plain_first=number % 2 == 0) for number in range(ROUNDS)]
        with Reporter.attach(environment) as reporter:
            model = reporter.load_model("hooks")
            begin_end = nanoseconds(lambda: model.end(model.begin(0), 1000))
            memory = nanoseconds(lambda: reporter.add_memory(0, "tensors_bytes", 1))
        after_close = nanoseconds(lambda: model.end(model.begin(0), 1000))
    clock = nanoseconds(lambda: (time.monotonic(), time.monotonic()))
    wall_ratios = [reporting[0] / plain[0] for plain, reporting in rounds]
    cpu_ratios = [reporting[1] / plain[1] for plain, reporting in rounds]
    low, _, high = quantiles(cpu_ratios)
    step_seconds = median(plain[1] for plain, _ in rounds)
    report(
        f"Reporting at about {1 / step_seconds:.0f} steps/s, an execution and a memory level each, {ROUNDS} rounds",
        [
            Figure("vCPU time of a step, reporting / not", median(cpu_ratios), "ratio", "at most 1.01"),
            Figure("  first quartile of the rounds", low, "ratio"),
            Figure("  third quartile of the rounds", high, "ratio"),
            Figure("wall-clock time of a step, reporting / not", median(wall_ratios), "ratio", "at most 1.01"),
            Figure("vCPU time of a step, not reporting", step_seconds * 1e6, "us"),
            Figure(
                "begin, end and set_memory / that", (begin_end + memory) / 1e9 / step_seconds, "ratio", "at most 0.01"
            ),
            Figure("begin and end of an execution, applied and reported", begin_end, "ns", "at most 2000"),
            Figure("add_memory, applied and reported", memory, "ns", "at most 1000"),
            Figure("begin and end in a forked child or after close", after_close, "ns"),
            Figure("two clock readings, which begin and end include", clock, "ns"),
        ],
    )


def one_round(amount: int, environment: dict[str, str], *, plain_first: bool) -> tuple[Pair, Pair]:
    """Runs both loops right after each other, so a slow moment hits both."""
    plain = seconds_a_step(lambda: plain_loop(amount)) if plain_first else (0.0, 0.0)
    with Reporter.attach(environment) as reporter:
        model = reporter.load_model("loop")
        reporting = seconds_a_step(lambda: reporting_loop(amount, reporter, model))
    return plain if plain_first else seconds_a_step(lambda: plain_loop(amount)), reporting


if __name__ == "__main__":
    main()
