"""Finds small changes to the product that no test notices, and the tests that notice the other changes.

    python scripts/mutants --record      # first runs all tests, later those that new code concerns
    python scripts/mutants --seed 1 --count 400 --output matrix.json

A room is a top-level folder of a package. The mutants are sampled from all rooms in proportion to their size. The same
seed samples the same mutants from the same source. Each mutant runs against the tests that reach its block of
statements, in the order of `reach.py`. Each trial is a forked process on a copy of the tree. It is a fork of a process
that has collected all tests, or, for code that runs at import, of one that has only imported the slow modules. The
checkout is never changed. `table.toml` lists the central modules and the equivalent mutants.

A stopped run keeps its results: `--record` continues the recording, and a run continues its `--output` file. A mutant
of this file is tried again if its module has changed, or if it survived and the tests that reach it have changed.

A mutant is killed if a test fails that passes without the mutant, if pytest can't import conftest.py, or if its tests
hang. Tests hang if they wait for a minute, use no CPU time for a minute, fill the memory, or take several times their
usual CPU time.

Exit codes: 0 enough mutants were killed, 1 too few, 2 the run was not possible, 130 interrupted.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import tomllib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from collected import FailureRecorder
from mutant import Mutant, mutants_of
from reach import Reach, ReachRecorder, TestReach, digest, instrument, reached_blocks, read_rows
from trial import Selection, Slot, Trial, adopt_orphans, fork_pytest

TABLE = Path(__file__).with_name("table.toml")
LEAST_PERCENT, LEAST_CENTRAL_PERCENT = 90.0, 95.0
_COLLECTED_CPU_SECONDS = 3.0  # the first tests of a trial that has to collect them; collecting all takes longer
_SUSPECT_CPU_SECONDS = 60.0  # more than a test needs
_CONFTEST = "tests/conftest.py"  # killer of a mutant with which pytest can't import it, and gives a usage error
_HANG_SECONDS = "60"  # the time limit of a test, which is a fifth of the usual one
_SAVED_SECONDS = 60.0  # the recording is saved so often
_PACKAGES = ("neurontools", "daemon/neurond")
_PRELOADED = (
    "pytest",
    "hypothesis",
    "hypothesis.internal.conjecture.engine",
    "grpc",
    "pydantic",
    "textual.app",
    "torch",
)


class NotPossible(Exception):
    """The run is not possible. The text has the cause and the next step."""


@dataclass
class Outcome:
    """Result of one mutant.

    `reaching_count`: number of tests that reach it. `tried`: number of tests selected to run. `killers`: the tests
    that failed because of it.
    """

    mutant: Mutant
    room: str
    is_central: bool
    reaching_count: int = 0
    tried: int = 0
    killers: list[str] = field(default_factory=list)
    hung: bool = False
    digest: str = ""
    """Of the module and, for a survivor, of the tests that reach it. While it is the same, so is the result."""
    exit_code: int | None = 0
    """That of the last trial; None if it was killed. A survivor with another code than 0 ended its tests too early."""
    cpu_seconds: float = 0.0

    @property
    def killed(self) -> bool:
        """Whether a test noticed the mutant."""
        return self.hung or bool(self.killers)

    @property
    def place(self) -> str:
        """Returns "file:line: change"."""
        return f"{self.mutant.path}:{self.mutant.line}: {self.mutant.change}"


def main() -> int:
    """Runs the command and returns the exit code."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--root", type=Path, default=Path(__file__).resolve().parents[2], help="the tree (default: this)"
    )
    parser.add_argument(
        "--record", action="store_true", help="record which tests reach which blocks, and try no mutants"
    )
    parser.add_argument("--quick", action="store_true", help="with --record: leave out the slow tests")
    parser.add_argument("--seed", type=int, default=1, help="draws the mutants (default: 1)")
    parser.add_argument("--count", type=int, default=100, help="how many; 0 for all (default: 100)")
    parser.add_argument("--module", default="", help="only of modules whose path has this in it")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: CPUs)")
    parser.add_argument("--budget", type=float, default=60.0, help="CPU seconds of tests for a mutant (default: 60)")
    parser.add_argument(
        "--matrix", type=float, default=0.0, help="CPU seconds of tests that go on after the first kill"
    )
    parser.add_argument("--output", type=Path, help="write what was tried and which test killed which mutant, as JSON")
    parser.add_argument("--only", type=Path, help="try the mutants that an --output file of this name has")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    root: Path = options.root.resolve()
    recording = root / ".venv/mutants/reach.json"
    outcomes: list[Outcome] = []
    try:
        sources = {path: (root / path).read_text("utf-8") for path in modules_of(root)}
        tests = {path: digest((root / path).read_text("utf-8")) for path in test_files_of(root)}
        if options.record:
            reach = Reach.of_modules(sources)
            if recording.exists():
                reach = Reach.load(recording, sources).of_files(tests)
            marker = "not slow" if options.quick else ""
            for part in record(root, replace(reach, files=tests), marker, options.jobs):
                part.save(recording)
            return 0
        table = tomllib.loads(TABLE.read_text("utf-8"))
        outcomes = drawn(list(population(sources, table, options.module)), options)
        if options.list:
            for outcome in outcomes:
                print(outcome.place)
            return 0
        if not recording.exists():
            raise NotPossible("no test run has been recorded; run it with --record first")
        reach = Reach.load(recording, sources)
        if reach.files != tests or not reach.complete:
            raise NotPossible("code has changed, or tests are not recorded yet; run it with --record again")
        random.Random(options.seed).shuffle(outcomes)
        limits = Limits(options.budget, options.matrix)
        os.environ["TESTS_HANG_SECONDS"] = _HANG_SECONDS
        if options.output and options.output.exists():
            continue_from(json.loads(options.output.read_text("utf-8")), outcomes, reach)
        untried = [outcome for outcome in outcomes if not outcome.digest]
        for done, outcome in enumerate(try_all(root, untried, reach, options.jobs, limits), 1):
            outcome.digest = result_digest(outcome, reach)
            show(outcome, done, len(untried))
            if options.output:
                save(outcomes, options.output)
    except NotPossible as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print_table([outcome for outcome in outcomes if outcome.digest])
        return 130
    return print_table(outcomes)


def modules_of(root: Path) -> list[str]:
    """Returns the paths of the product's modules, without generated ones."""
    found = (path for package in _PACKAGES for path in sorted((root / package).rglob("*.py")))
    return [
        str(path.relative_to(root))
        for path in found
        if "_pb2" not in path.name and "compiled" not in path.parts and "compiled" not in path.stem
    ]


def test_files_of(root: Path) -> list[str]:
    """Returns the test files, without tests/frameworks: those use an installation of the checkout, not the copy."""
    found = (str(path.relative_to(root)) for path in (root / "tests").rglob("test_*.py"))
    return sorted(path for path in found if not path.startswith("tests/frameworks/"))


def room_of(path: str) -> str:
    """Returns the room of a module: the package, and the first folder in it."""
    parts = path.removeprefix("daemon/").split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def population(sources: Mapping[str, str], table: Mapping[str, list[str]], part: str) -> Iterator[Outcome]:
    """Yields all mutants of modules whose path contains `part`, without equivalent mutants.

    Raises NotPossible if the table names a module or a mutant that no longer exists.
    """
    equivalent = {(each["module"], each["line"], each["change"]) for each in table["equivalent"]}  # type: ignore[index]
    central = set(table["central"])
    gone = sorted(path for path in central | {path for path, _, _ in equivalent} if path not in sources)
    if gone:
        raise NotPossible(f"{TABLE.name} names {', '.join(gone)}, which the tree does not have")
    for path, source in sources.items():
        if part not in path:
            continue
        named = {key for key in equivalent if key[0] == path}
        for mutant in mutants_of(path, source):
            key = (path, mutant.source_line, mutant.change)
            named.discard(key)
            if key not in equivalent:
                yield Outcome(mutant, room_of(path), path in central)
        if named:
            raise NotPossible(f"{TABLE.name} names a change that {path} does not have any more: {min(named)[1:]}")


def drawn(mutants: list[Outcome], options: argparse.Namespace) -> list[Outcome]:
    """Returns `--count` sampled mutants, from each room in proportion to its size, or the mutants of `--only`."""
    if options.only:
        rows = json.loads(options.only.read_text("utf-8"))
        named = {(row["path"], row["source_line"], row["change"]) for row in rows}
        return [each for each in mutants if (each.mutant.path, each.mutant.source_line, each.mutant.change) in named]
    if not options.count or options.count >= len(mutants):
        return mutants
    rooms: dict[str, list[int]] = {}
    for index, each in enumerate(mutants):
        rooms.setdefault(each.room, []).append(index)
    chosen: list[int] = []
    generator = random.Random(options.seed)
    for _, indexes in sorted(rooms.items()):
        share = max(2, round(options.count * len(indexes) / len(mutants)))
        chosen += generator.sample(indexes, min(share, len(indexes)))
    return [mutants[index] for index in sorted(chosen)]


def result_digest(outcome: Outcome, reach: Reach) -> str:
    """Returns the digest of all that the result of a mutant depends on."""
    parts = [reach.modules[outcome.mutant.path][2]]
    if not outcome.killed:
        reaching = reach.tests_of(outcome.mutant.path, outcome.mutant.block)
        parts += sorted(test.name + reach.files[test.file] for test in reaching)
    return digest(" ".join(parts))


def continue_from(rows: Iterable[Mapping[str, Any]], outcomes: Iterable[Outcome], reach: Reach) -> None:
    """Takes over results of an earlier run that are still valid."""
    known = {(row["path"], row["line"], row["source_line"], row["change"]): row for row in rows}
    for each in outcomes:
        mutant = each.mutant
        row = known.get((mutant.path, mutant.line, mutant.source_line, mutant.change))
        if row is None:
            continue
        earlier = replace(each, killers=row["killers"], hung=row["hung"], tried=row["tried"])
        if result_digest(earlier, reach) == row["digest"]:
            each.killers, each.hung, each.tried = row["killers"], row["hung"], row["tried"]
            each.reaching_count, each.cpu_seconds, each.digest = row["reaching"], row["cpu_seconds"], row["digest"]


@contextmanager
def slots(root: Path, count: int) -> Iterator[list[Slot]]:
    """Yields copies of the tree and removes them afterwards. Does the slow imports once for all of them."""
    adopt_orphans()
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # the tests load our own backend, from their copy
    os.environ["OMP_NUM_THREADS"] = "1"  # the tensors of tests are too small for more
    for name in _PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)
    del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]  # processes that tests start have it as a user's have
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)  # tests run processes of other users
        yield [Slot(root, Path(directory) / str(number)) for number in range(count)]


def record(root: Path, reach: Reach, marker: str, jobs: int) -> Iterator[Reach]:
    """Runs the tests without a row on instrumented copies, which share the files.

    Yields the recording: once a minute what is known, and at the end the whole. `marker` is an expression of pytest.
    """
    files, names = sorted(reach.files), frozenset(test.name for test in reach.tests)
    with slots(root, max(1, min(jobs, len(files)))) as copies:
        probes = []
        for slot in copies:
            probes.append(instrument(slot.tree, reach))
            compileall.compile_dir(slot.tree, quiet=2, workers=1)
        wait_for(Trial(copies[0], fork_pytest(copies[0], ["--collect-only", *files])))
        reach = replace(reach, imported=reached_blocks(probes[0]), complete=False)
        trials, outputs = [], []
        for number, (slot, reached) in enumerate(zip(copies, probes, strict=True)):
            rows = slot.tree.parent / "rows"
            rows.touch()
            outputs.append(rows)
            recorder = ReachRecorder(reached, rows, names, slice(number, None, len(copies)))
            trials.append(Trial(slot, fork_pytest(slot, ["-m", marker, *files], [recorder])))
        running = list(trials)
        try:
            while running:
                deadline_seconds = time.monotonic() + _SAVED_SECONDS
                while running and time.monotonic() < deadline_seconds:
                    time.sleep(1.0)
                    running = [trial for trial in running if trial.exit_code() is None]
                found = [test for rows in outputs for test in read_rows(rows)]
                yield replace(reach, tests=(*reach.tests, *found))
        finally:  # the trials have process groups of their own, so Ctrl-C reaches only this process
            for trial in running:
                trial.kill()
        for trial in trials:
            print(trial.slot.output.read_text(errors="replace")[-3000:], file=sys.stderr)
    print(
        f"{len(found)} tests recorded, of which {sum(not test.passed for test in found)} did not pass", file=sys.stderr
    )
    yield replace(reach, tests=(*reach.tests, *found), complete=True)


def wait_for(trial: Trial) -> None:
    """Waits until a trial without a time limit ends."""
    while trial.exit_code() is None:
        time.sleep(1.0)


@dataclass(frozen=True, slots=True)
class Limits:
    """CPU time for the tests of one mutant: in all, and as long as tests go on after the first failure."""

    cpu_seconds: float
    matrix_cpu_seconds: float


def try_all(root: Path, outcomes: Iterable[Outcome], reach: Reach, jobs: int, limits: Limits) -> Iterator[Outcome]:
    """Tries mutants with `jobs` trials in parallel. Yields each outcome when it is known."""
    verdicts: dict[str, bool] = {}
    waiting = deque(outcomes)
    if not waiting:
        return
    with slots(root, jobs) as free:
        for slot in free:
            compileall.compile_dir(slot.tree, quiet=2, workers=1)
        collected = [slot.collect(sorted(reach.files)) for slot in free]
        for each in collected:
            each.wait_until_collected()
        running: list[Attempt] = []
        try:
            while waiting or running:
                while waiting and free:
                    running.append(Attempt(waiting.popleft(), free.pop(), reach, limits, verdicts))
                time.sleep(0.05)
                for attempt in list(running):
                    if attempt.has_ended():
                        running.remove(attempt)
                        free.append(attempt.slot)
                        yield attempt.outcome
        finally:
            for attempt in running:
                attempt.kill()
            for each in collected:
                each.close()


class Attempt:
    """Runs the tests of one mutant, in one or more trials.

    A failed test runs again without the mutant. If it fails again, it doesn't count and is left out from then on.
    `passes_alone` has the results of tests without a mutant. All attempts share it.
    """

    def __init__(
        self, outcome: Outcome, slot: Slot, reach: Reach, limits: Limits, passes_alone: dict[str, bool]
    ) -> None:
        self.outcome, self.slot = outcome, slot
        self._passes_alone = passes_alone
        self._failures = slot.tree.parent / "failures"
        self._suspects: list[str] = []
        self._changed = None
        if not reach.is_imported(outcome.mutant.path, outcome.mutant.block):
            self._changed = outcome.mutant.changed_code(str(slot.tree / outcome.mutant.path))
        tests = reach.tests_of(outcome.mutant.path, outcome.mutant.block)
        if outcome.mutant.has_caches:  # a function with a cache runs only in the first test that needs it
            tests += [test for test in reach.tests_of(outcome.mutant.path, None) if test not in tests]
        fitting = list(within(self._trusted(tests), limits.cpu_seconds))
        outcome.reaching_count = len(tests)
        matrix = list(within(fitting, limits.matrix_cpu_seconds)) if limits.matrix_cpu_seconds else []
        first = matrix or (list(within(fitting, _COLLECTED_CPU_SECONDS)) if self._changed is None else [])
        rest = [test for test in fitting if test not in first]
        self._batches = deque(batch for batch in (first, rest) if batch)
        outcome.tried = len(fitting)
        self._stops_at_first = not matrix
        self._trial = self._next_trial()

    def has_ended(self) -> bool:
        """Whether the outcome is known. Starts the next trial if one is needed."""
        if self._trial is None:
            return True
        exit_code = self._trial.exit_code()
        hung = exit_code == -signal.SIGXCPU or (exit_code is None and self._trial.hangs())
        if hung and exit_code is None:
            self._trial.kill()
        elif exit_code is None:
            return False
        self.outcome.cpu_seconds += self._trial.cpu_seconds
        self.outcome.exit_code = exit_code
        self._trial = self._after(hung)
        return self._trial is None

    def kill(self) -> None:
        """Kills the running trial."""
        if self._trial is not None:
            self._trial.kill()

    def _trusted(self, tests: Iterable[TestReach]) -> list[TestReach]:
        return [test for test in tests if self._passes_alone.get(test.name, True)]

    def _next_trial(self) -> Trial | None:
        batch = self._trusted(self._batches.popleft()) if self._batches else []
        if not batch:
            return self._next_trial() if self._batches else None
        self._batch = batch
        return self._start({test.name: test.cpu_seconds for test in batch}, has_mutant=True)

    def _after(self, hung: bool) -> Trial | None:
        failed = set(self._failures.read_text("utf-8").splitlines()) if self._failures.exists() else set()
        if self._suspects:  # this trial was without the mutant
            self._passes_alone.update((name, name not in failed) for name in self._suspects)
            self.outcome.killers += [name for name in self._suspects if name not in failed]
            self._suspects = []
            if failed and not self.outcome.killed:
                self._batches.appendleft(self._batch)  # the trial may have stopped before other tests
        else:
            self.outcome.hung = hung
            self.outcome.killers += sorted(name for name in failed if self._passes_alone.get(name))
            if self.outcome.exit_code == pytest.ExitCode.USAGE_ERROR:
                self.outcome.killers.append(_CONFTEST)
            self._suspects = sorted(name for name in failed if name not in self._passes_alone)
            if self._suspects:
                return self._start(dict.fromkeys(self._suspects, _SUSPECT_CPU_SECONDS), has_mutant=False)
            self._stops_at_first = True
        return None if self.outcome.killed else self._next_trial()

    def _start(self, tests: dict[str, float], *, has_mutant: bool) -> Trial:
        self._failures.unlink(missing_ok=True)
        path, slot = self.outcome.mutant.path, self.slot
        slot.put(path, self.outcome.mutant.text() if has_mutant else None)
        stops_at_first = self._stops_at_first and has_mutant
        if slot.collected is not None and self._changed is not None:
            slot.clear()
            changed = self._changed if has_mutant else []
            pid = slot.collected.start(
                tests, self._failures, stops_at_first=stops_at_first, path=slot.tree / path, changed=changed
            )
        else:
            selection = Selection(list(tests))
            flags = ["-x"] if stops_at_first else []
            pid = fork_pytest(slot, [*flags, *selection.files], [selection, FailureRecorder(self._failures)])
        return Trial(slot, pid, sum(tests.values()) if has_mutant else None)


def within(tests: Iterable[TestReach], cpu_seconds: float) -> Iterator[TestReach]:
    """Yields the tests that fit into this CPU time, in order. Always yields the first test."""
    spent = 0.0
    for test in tests:
        cost = test.cpu_seconds + 0.01
        if spent and spent + cost > cpu_seconds:
            continue
        spent += cost
        yield test


def show(outcome: Outcome, number: int, count: int) -> None:
    """Prints a line about a mutant to standard error."""
    verdict = "hangs   " if outcome.hung else "killed  " if outcome.killed else "SURVIVES"
    reached = "" if outcome.tried else " (no test reaches it)"
    if not outcome.killed and outcome.exit_code:
        reached = f" (the tests ended with exit code {outcome.exit_code})"
    print(
        f"{number:4}/{count} {verdict} {outcome.cpu_seconds:6.1f} s  {outcome.place}{reached}",
        file=sys.stderr,
        flush=True,
    )


def save(outcomes: Sequence[Outcome], path: Path) -> None:
    """Writes the outcomes as JSON: mutants, the tests that killed them, and the numbers of tests."""
    rows = [
        {
            "path": each.mutant.path,
            "line": each.mutant.line,
            "source_line": each.mutant.source_line,
            "change": each.mutant.change,
            "room": each.room,
            "central": each.is_central,
            "killed": each.killed,
            "hung": each.hung,
            "killers": each.killers,
            "reaching": each.reaching_count,
            "tried": each.tried,
            "cpu_seconds": round(each.cpu_seconds, 2),
            "digest": each.digest,
        }
        for each in outcomes
        if each.digest
    ]
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(json.dumps(rows, indent=1), "utf-8")
    unfinished.replace(path)


def print_table(outcomes: Sequence[Outcome]) -> int:
    """Prints the survivors and the counts by room. Returns the exit code.

    No recorded test reaches some survivors; the last column has their number.
    """
    for outcome in sorted(outcomes, key=lambda outcome: outcome.place):
        if not outcome.killed:
            mutant = outcome.mutant
            print(f"{mutant.path}:{mutant.line}: {mutant.source_line}\n    {mutant.change}")
    groups = {
        room: [each for each in outcomes if each.room == room] for room in sorted({each.room for each in outcomes})
    }
    groups["central modules"] = [each for each in outcomes if each.is_central]
    groups["all"] = list(outcomes)
    print(f"{'room':40} mutants  killed        survivors  not reached")
    percents = {}
    for name, group in groups.items():
        killed = sum(each.killed for each in group)
        percents[name] = 100.0 * killed / len(group) if group else 100.0
        unreached = sum(not each.killed and not each.reaching_count for each in group)
        print(f"{name:40} {len(group):7} {killed:7} {percents[name]:5.1f} % {len(group) - killed:11} {unreached:12}")
    enough = percents["all"] >= LEAST_PERCENT and percents["central modules"] >= LEAST_CENTRAL_PERCENT
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
