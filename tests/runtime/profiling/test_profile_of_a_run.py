"""neuron-run --profile over real trainings of one worker."""

from __future__ import annotations

import json
import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from neurontools.cli.run.command import request_profile
from neurontools.profile import Engine, Profile, read_directory
from neurontools.profile.definitions import SpanKind
from neurontools.util.errors import EXIT_USAGE, UserError
from tests.harness.neuron_run import TRAINING, Started, neuron_run
from tests.harness.profiled_scripts import TWELVE_STEPS
from tests.harness.waiting import wait_until

MODEL_LINE, LOSS_LINE, STEP_LINE = 9, 10, 12
ROUNDING_NS = 8  # of five parts and two moments


@dataclass(frozen=True)
class Run:
    """A training that ended well: its profiles, its summary, and what neuron-run said."""

    profiles: list[Profile]
    summary: dict[str, Any]
    said: str

    @property
    def profile(self) -> Profile:
        (profile,) = self.profiles
        return profile


def profiled(directory: Path, script: str, *options: str, **environment: str) -> Run:
    (directory / "script.py").write_text(script)
    where = ("--simulate", "trn1.2xlarge", "--summary-json", "out.json", "--profile", "made")
    run = neuron_run(directory, *where, *options, "script.py", **environment)
    assert run.returncode == 0, run.stderr
    return Run(read_directory(directory / "made"), json.loads((directory / "out.json").read_text()), run.stderr)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Twelve steps of one worker."""
    return profiled(tmp_path_factory.mktemp("profiled"), TWELVE_STEPS)


def test_a_profile_counts_what_the_summary_counts_and_knows_the_lines_of_the_script(run: Run) -> None:
    profile, summary = run.profile, run.summary
    assert "12 steps, 12 executions" in run.said
    assert profile.state.has_ended
    assert not profile.is_damaged
    assert [step.step for step in profile.steps] == list(range(1, 13))
    assert sum(step.flops for step in profile.steps) == summary["flop_total"]
    assert sum(total.executions for total in profile.graph_totals) == summary["executions_total"]
    flops = {total.graph: total.executions for total in profile.graph_totals}
    assert sum(flops[each.graph] * each.flops for each in profile.operators) == summary["flop_total"]
    moved = [event for event in profile.span_events() if event.kind is SpanKind.TO_DEVICE]
    assert sum(event.bytes or 0 for event in moved) == summary["ranks"][0]["to_device_bytes"]
    assert profile.metadata.instance_type == "trn1.2xlarge"
    assert profile.metadata.script.endswith("script.py")
    by_name = {(operator.name, operator.is_backward): operator for operator in profile.operators}
    product = by_name["aten::linear", False]
    assert product.engine is Engine.TENSOR
    assert product.scope == "Sequential/Linear"
    assert profile.stack(product.stack)[0].line == MODEL_LINE
    gradient = by_name["aten::linear_backward", True]
    assert profile.stack(gradient.stack)[0].line == MODEL_LINE
    updates = [each for each in profile.operators if each.name.startswith("aten::_foreach")]
    assert {profile.stack(each.stack)[0].line for each in updates} == {STEP_LINE}
    assert profile.graphs[0].reason == "the first one"
    assert "operators" in profile.graphs[1].reason


def test_the_times_of_operators_fill_their_executions_and_those_the_busy_time(run: Run) -> None:
    profile = run.profile
    busy_ns = sum(total.total_ns for total in profile.graph_totals)
    assert sum(total.total_ns for total in profile.operator_totals) == busy_ns
    assert sum(each.end_ns - each.start_ns for each in profile.executions) == busy_ns
    assert busy_ns / 1e9 == pytest.approx(run.summary["ranks"][0]["busy_seconds"], rel=1e-6)
    for step in profile.steps:
        assert step.compute_ns > 0
        parts_ns = step.compile_ns + step.input_wait_ns + step.transfer_ns + step.compute_ns + step.collective_ns
        assert parts_ns <= step.duration_ns + ROUNDING_NS
    for execution in profile.executions:
        assert execution.queued_ns <= execution.start_ns <= execution.end_ns
        step = profile.steps[execution.step - 1]
        assert step.start_ns <= execution.start_ns < execution.end_ns <= step.end_ns


def test_every_allocation_has_its_line_and_what_is_left_is_what_the_core_holds(run: Run) -> None:
    profile, rank = run.profile, run.summary["ranks"][0]
    assert sum(block.bytes for block in profile.blocks) == rank["hbm_bytes"]
    assert profile.state.hbm_peak_bytes == (rank["hbm_peak_bytes"],)
    assert max(levels.total_bytes for levels in profile.memory_levels) <= profile.state.hbm_peak_bytes[0]
    tensors = [block for block in profile.blocks if block.category in (0, 4)]
    assert all(profile.stack(block.stack) for block in tensors)


def test_only_the_steps_that_were_asked_for_are_profiled_also_where_the_script_forks(tmp_path: Path) -> None:
    forking = "    import os\n    if number == 4 and not os.fork(): raise SystemExit\n    optimizer.zero_grad()"
    script = TWELVE_STEPS.replace("    optimizer.zero_grad()", forking)
    run = profiled(tmp_path, script, "--profile-steps", "4:6")
    profile = run.profile
    assert profile.state.has_ended
    assert [step.step for step in profile.steps] == [4, 5, 6]
    assert [each.step for each in profile.executions] == [4, 5, 6]
    assert [step.compile_ns for step in profile.steps] == [0, 0, 0], "what a profile executes was made before them"
    assert all(operator.stack is not None for operator in profile.operators)
    assert "3 steps, 3 executions" in run.said


@pytest.mark.slow
def test_a_bounded_profile_keeps_all_steps_and_sums_and_says_what_it_dropped(tmp_path: Path) -> None:
    script = TWELVE_STEPS.replace("range(12)", "range(3000)")
    run = profiled(tmp_path, script, NEURON_RT_INSPECT_SYS_TRACE_MAX_EVENTS_PER_NC="1000")
    profile = run.profile
    assert len(profile.steps) == 3000
    assert sum(each.executions for each in profile.graph_totals) == run.summary["executions_total"]
    assert 0 < len(profile.executions) < 3000
    assert profile.state.dropped["executions"] == 3000 - len(profile.executions)
    assert "of its events dropped" in run.said
    (kept,) = (tmp_path / "made").glob("*.neuronprofile")
    assert kept.stat().st_size < 300_000, "the viewers' files have what is left in it, the newest second as a whole"


def test_a_worker_that_is_killed_leaves_what_it_had(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TRAINING)
    started = Started(tmp_path, "--simulate", "trn1.2xlarge", "--profile", "made", "script.py")
    try:
        pid = started.pid_of()

        def has_steps() -> bool:
            found = list((tmp_path / "made").glob("*.neuronprofile"))
            return bool(found) and len(read_directory(tmp_path / "made")[0].steps) > 3

        wait_until(has_steps)
        os.kill(pid, signal.SIGKILL)
        started.end()
    finally:
        started.close()
    (profile,) = read_directory(tmp_path / "made")
    assert not profile.state.has_ended
    assert len(profile.steps) > 3
    for pattern in ("*.pt.trace.json.gz", "plugins/profile/*/*.xplane.pb", "*.memory_snapshot.pickle"):
        assert list((tmp_path / "made").glob(pattern))
    assert len(profile.operator_ns) == sum(profile.executions.column("operator_count"))


@pytest.mark.parametrize(
    "where", ["/proc/self/made", *(pytest.param(each, marks=pytest.mark.slow) for each in ("/proc", "script.py/below"))]
)
def test_a_place_where_no_profile_can_be_costs_a_line_and_the_training_goes_on(tmp_path: Path, where: str) -> None:
    (tmp_path / "script.py").write_text(TWELVE_STEPS)
    run = neuron_run(tmp_path, "--simulate", "trn1.2xlarge", "--profile", where, "script.py")
    assert run.returncode == 0, run.stderr
    (line,) = [line for line in run.stderr.splitlines() if "profile: not written" in line]
    assert "give a writable directory" in line


@pytest.mark.slow
def test_a_disk_that_fills_up_costs_a_line_and_the_training_goes_on(tmp_path: Path) -> None:
    limited = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
{TWELVE_STEPS.replace("range(12)", "range(300)")}
import sys; sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
print("trained", flush=True)
"""
    (tmp_path / "script.py").write_text(limited)
    run = neuron_run(tmp_path, "--simulate", "trn1.2xlarge", "--profile", "made", "script.py")
    assert run.returncode == 0, run.stderr
    assert "trained" in run.stdout
    assert [line for line in run.stderr.splitlines() if "incomplete" in line and "free space" in line]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_steps_that_can_not_be_meant_are_refused() -> None:
    for options, said in (
        ({"profile": "made", "profile-steps": "5:2"}, "the last one must not be before"),
        ({"profile-steps": "1:2"}, "add --profile DIR"),
    ):
        with pytest.raises(UserError, match=f"^[^\n]*{said}[^\n]*$") as refused:
            request_profile(options, {})
        assert refused.value.exit_code == EXIT_USAGE
