"""Which small changes to the modules that others build on does no test notice?

    python scripts/mutants --seed 1 --count 100

The modules, the tests that answer for each, and the changes that make no difference are in `table.toml`. A seed draws
the same mutants from the same source. They run on copies of the tree, each in a process forked from this one, which
has imported what is slow; the checkout is never changed.

A mutant is killed when a test fails, or the module can't be imported, or the tests don't end: they stand still, fill
the memory, or take ten times the CPU time that they need.

Exit codes: 0 enough mutants were killed, 1 too few, 2 the run was not possible, 130 interrupted.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import os
import random
import signal
import sys
import tempfile
import time
import tomllib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from mutant import Mutant, mutants_of
from trial import Slot, Trial

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("table.toml")
LEAST_PERCENT = 95.0
_PYTEST_FOUND_NOTHING = (4, 5)  # no such test, no test at all


class NotPossible(Exception):
    """The run can't be; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Job:
    """The tests of a module, to be run with a mutant of it, or without to see that they pass."""

    path: str
    tests: tuple[str, ...]
    mutant: Mutant | None


@dataclass(frozen=True, slots=True)
class Result:
    """How a job ended. `hung`: its tests had to be killed."""

    job: Job
    exit_code: int
    hung: bool
    cpu_seconds: float
    output: str


def main() -> int:
    """Runs the mutants that the command line asks for; the exit code."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="draws the mutants (default: 1)")
    parser.add_argument("--count", type=int, default=100, help="how many; 0 for all (default: 100)")
    parser.add_argument("--module", default="", help="only of modules whose path has this in it")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: CPUs)")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    table = tomllib.loads(TABLE.read_text("utf-8"))
    tests = {path: tuple(given) for path, given in table["tests"].items() if options.module in path}
    results: list[Result] = []
    try:
        if not tests:
            raise NotPossible(f"no module in {TABLE.name} has {options.module!r} in its path; see its table `tests`")
        mutants = drawn(list(population(tests, table.get("equivalent", []))), options.seed, options.count)
        if options.list:
            for mutant in mutants:
                print(f"{mutant.path}:{mutant.line}: {mutant.change}")
            return 0
        for result in run(mutants, tests, options.jobs):
            results.append(result)
            tell(result, len(results), len(mutants))
    except NotPossible as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print_table(results)
        return 130
    return 0 if print_table(results) >= LEAST_PERCENT else 1


def population(tests: Iterable[str], equivalent: Sequence[Mapping[str, str]]) -> Iterator[Mutant]:
    """All mutants of these modules but the equivalent ones; NotPossible when one of those is not a mutant any more."""
    named = {(each["module"], each["line"], each["change"]) for each in equivalent}
    found = set()
    for path in tests:
        for mutant in mutants_of(path, (ROOT / path).read_text("utf-8")):
            key = (path, mutant.source_line, mutant.change)
            if key in named:
                found.add(key)
            else:
                yield mutant
    for path, line, change in sorted(named - found):
        if path in tests:
            raise NotPossible(f"{path} has no mutant {change!r} in the line {line!r}; remove it from {TABLE.name}")


def drawn(mutants: list[Mutant], seed: int, count: int) -> list[Mutant]:
    """So many of the mutants, the same for a seed, in the order of their source; all of them for a count of 0."""
    if not count or count >= len(mutants):
        return mutants
    chosen = random.Random(seed).sample(range(len(mutants)), count)  # noqa: S311
    return [mutants[index] for index in sorted(chosen)]


def run(mutants: list[Mutant], tests: Mapping[str, tuple[str, ...]], job_count: int) -> Iterator[Result]:
    """The results as they come in; NotPossible when tests fail without a mutant."""
    paths = list(dict.fromkeys(mutant.path for mutant in mutants))
    baselines = [Job(path, tests[path], None) for path in paths]
    preload(tests[path] for path in paths)
    with slots(job_count) as free:
        needed_cpu_seconds: dict[str, float] = {}
        for result in carried_out(baselines, free, needed_cpu_seconds):
            if result.exit_code:
                raise NotPossible(f"the tests of {result.job.path} fail without a mutant:\n{result.output}")
            needed_cpu_seconds[result.job.path] = result.cpu_seconds
        jobs = [Job(mutant.path, tests[mutant.path], mutant) for mutant in mutants]
        for result in carried_out(jobs, free, needed_cpu_seconds):
            if result.exit_code in _PYTEST_FOUND_NOTHING:
                raise NotPossible(f"pytest found no tests for {result.job.path}:\n{result.output}")
            yield result


def preload(tests: Iterable[tuple[str, ...]]) -> None:
    """Imports what is slow to import and not ours, once for all that is forked from this process."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # our own backend belongs to the tests
    needs_torch = any("torch_device" in argument for given in tests for argument in given)
    for name in ("pytest", "hypothesis", "hypothesis.internal.conjecture.engine", *["torch"] * needs_torch):
        importlib.import_module(name)


@contextmanager
def slots(count: int) -> Iterator[list[Slot]]:
    """Copies of the tree, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as directory:
        made = [Slot(ROOT, Path(directory) / str(number)) for number in range(count)]
        for slot in made:
            compileall.compile_dir(slot.tree, quiet=2, workers=1)
        yield made


def carried_out(
    jobs: Iterable[Job], slots: Sequence[Slot], needed_cpu_seconds: Mapping[str, float]
) -> Iterator[Result]:
    """Runs jobs, as many at a time as there are slots."""
    waiting = deque(jobs)
    free = list(slots)
    running: list[tuple[Job, Trial, ExitStack]] = []
    try:
        while waiting or running:
            while waiting and free:
                job, slot, change = waiting.popleft(), free.pop(), ExitStack()
                if job.mutant is not None:
                    change.enter_context(slot.changed(job.path, job.mutant.text()))
                running.append((job, Trial(slot, job.tests, needed_cpu_seconds.get(job.path)), change))
            time.sleep(0.1)
            for entry in list(running):
                job, trial, change = entry
                exit_code = trial.exit_code()
                hung = exit_code is None and trial.hangs()
                if hung:
                    exit_code = trial.kill()
                if exit_code is None:
                    continue
                running.remove(entry)
                change.close()
                free.append(trial.slot)
                yield Result(job, exit_code, hung, trial.cpu_seconds, trial.slot.output.read_text(errors="replace"))
    finally:
        for _, trial, _ in running:
            trial.kill()


def tell(result: Result, number: int, count: int) -> None:
    """A line about a mutant, while the others run."""
    mutant = result.job.mutant
    if mutant is not None:
        verdict = "hangs   " if result.hung else "killed  " if result.exit_code else "SURVIVES"
        place = f"{mutant.path}:{mutant.line}: {mutant.change}"
        print(f"{number:4}/{count} {verdict} {result.cpu_seconds:5.1f} s  {place}", file=sys.stderr, flush=True)


def print_table(results: Sequence[Result]) -> float:
    """Prints the survivors and the counts by module; the percentage that was killed."""
    by_path: dict[str, list[Result]] = {}
    for result in results:
        by_path.setdefault(result.job.path, []).append(result)
    for path, of_module in sorted(by_path.items()):
        survivors = [each.job.mutant for each in of_module if each.job.mutant is not None and not each.exit_code]
        for mutant in sorted(survivors, key=lambda mutant: mutant.line):
            print(f"{path}:{mutant.line}: {mutant.source_line}\n    {mutant.change}")
    print(f"{'module':56} mutants  killed        survivors")
    by_path["all"] = list(results)
    percent = 0.0
    for path, of_module in sorted(by_path.items(), key=lambda item: (item[0] == "all", item[0])):
        killed = sum(1 for each in of_module if each.exit_code)
        percent = 100.0 * killed / len(of_module) if of_module else 0.0
        print(f"{path:56} {len(of_module):7} {killed:7} {percent:5.1f} % {len(of_module) - killed:7}")
    return percent


if __name__ == "__main__":
    sys.exit(main())
