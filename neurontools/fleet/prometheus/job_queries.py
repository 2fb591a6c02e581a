"""What is asked of a Prometheus of jobs, in PromQL: one query for those that are held up most, by rules or without.

A job of several hosts is known by its run, one of a single host by that host and its name. The rules are those of
deploy/prometheus/neuron.rules.yml; each expression here is the expression of the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neurontools.fleet.prometheus.quantities import Quantity
from neurontools.model.jobs import LEAST_RATIO, JobState

MOST_JOBS = 50
"""How many are told, each in at most eleven samples of some 90 bytes."""

OF = "of"
"""The label that says of what a sample is: the name of a quantity below, `SLOW_RANK`, or `JOB_COUNT`."""

SLOW_RANK, JOB_COUNT = "slow_rank", "jobs"
STATES = tuple(JobState)
"""A state is told as its place among these: the least is what holds up the rest."""

_RUN, _ALONE = "run_id", "instance, job_name"
_OF_RUNS, _OF_ALONE = 'run_id!=""', 'run_id=""'
_KEY = "run_id, instance, job_name"
_SEVERITIES = ("notice", "warning", "critical")


@dataclass(frozen=True, slots=True)
class JobQuantity:
    """A number of each job: the name of its rule for runs, and how it is made, by these labels of these series."""

    rule: str
    made: Callable[[str, str], str]

    @property
    def of_runs(self) -> Quantity:
        """For the jobs of several hosts."""
        return Quantity(self.rule, self.made(_RUN, _OF_RUNS))

    @property
    def of_alone(self) -> str:
        """For those of one host."""
        return self.made(_ALONE, _OF_ALONE)


def _over_hosts(how: str, metric: str) -> Callable[[str, str], str]:
    name, argument = how.partition(" ")[::2]
    inside = f"{argument}, " if argument else ""
    return lambda by, chosen: f"{name} by ({by}) ({inside}neurontools_job_{metric}{{{chosen}}})"


def _mfu(by: str, chosen: str) -> str:
    mfu, cores = f"neurontools_job_mfu_ratio{{{chosen}}}", "neurontools_job_neuroncores"
    return f"sum by ({by}) ({mfu} * {cores}) / sum by ({by}) ({cores} and {mfu})"


def _state(by: str, chosen: str) -> str:
    of_each = (f'{at} * neurontools_job_state{{{chosen}, state="{state}"}}' for at, state in enumerate(STATES))
    return f"min by ({by}) ({' or '.join(of_each)})"


def _severity(by: str, chosen: str) -> str:
    """The gravest finding on its processes; 0 for none, where its hosts are judged."""
    ranks = f"group by ({_KEY}) (neurontools_job_ranks{{{chosen}}})"
    found = " or ".join(
        f'{at} * group by (instance, job_name, severity) (neurontools_finding_seconds{{severity="{severity}"}})'
        for at, severity in enumerate(_SEVERITIES, 1)
    )
    gravest = f"max by ({by}) ({ranks} * on (instance, job_name) group_left () max by (instance, job_name) ({found}))"
    judged = f"max by ({by}) (0 * {ranks} * on (instance) group_left () group by (instance) (neurontools_health))"
    return f"{gravest} or {judged}"


QUANTITIES = {
    "ranks": JobQuantity("run:neuron_ranks:sum", _over_hosts("sum", "ranks")),
    "world_size": JobQuantity("run:neuron_world_size:max", _over_hosts("max", "world_size")),
    "neuroncores": JobQuantity("run:neuron_neuroncores:sum", _over_hosts("sum", "neuroncores")),
    "hosts": JobQuantity("run:neuron_hosts:count", _over_hosts("count", "ranks")),
    "state": JobQuantity("run:neuron_job_state:min", _state),
    "since_step": JobQuantity("run:neuron_seconds_since_last_step:min", _over_hosts("min", "seconds_since_last_step")),
    "steps_per_second": JobQuantity("run:neuron_steps_per_second:min", _over_hosts("min", "steps_per_second")),
    "step_seconds": JobQuantity("run:neuron_step_seconds:median", _over_hosts("quantile 0.5", "step_seconds")),
    "mfu": JobQuantity("run:neuron_mfu:avg", _mfu),
    "severity": JobQuantity("run:neuron_job_findings_severity:max", _severity),
}
"""By what a sample is of; `severity` as in `Severity`."""

_WAIT = f"neurontools_job_rank_collective_wait_seconds{{{_OF_RUNS}}}"
LEAST_WAIT = Quantity("run:neuron_rank_wait:least", f"min by (run_id) ({_WAIT})")


def _gain(least: str, world_size: str) -> str:
    """What each step would gain without the rank that waits least, alone, as a share of the step."""
    held_up = f"min by (run_id) ({_WAIT} > on (run_id) group_left () {least})"
    return (
        f"({held_up} - {least}) / max by (run_id) (neurontools_job_step_seconds{{{_OF_RUNS}}})"
        f" and on (run_id) count by (run_id) ({_WAIT} == on (run_id) group_left () {least}) == 1"
        f" and on (run_id) count by (run_id) ({_WAIT}) == {world_size}"
    )


def _slow(least: str, gain: str) -> str:
    """The same with who it is, where it is worth a word."""
    who = f"group by (run_id, instance, rank) ({_WAIT} == on (run_id) group_left () {least})"
    return f"{who} * on (run_id) group_left () ({gain} > {LEAST_RATIO})"


_WORLD_SIZE = QUANTITIES["world_size"].of_runs
GAIN = Quantity("run:neuron_slow_rank_gain:ratio", _gain(LEAST_WAIT.rule, _WORLD_SIZE.rule))
SLOW = Quantity("run_rank:neuron_slow_rank_gain:ratio", _slow(LEAST_WAIT.rule, GAIN.rule))
_SLOW_UNRECORDED = _slow(
    f"({LEAST_WAIT.expression})", f"({_gain(f'({LEAST_WAIT.expression})', f'({_WORLD_SIZE.expression})')})"
)

RULES = (*(quantity.of_runs for quantity in QUANTITIES.values()), LEAST_WAIT, GAIN, SLOW)
PROBED = QUANTITIES["neuroncores"].rule
"""A series of each run where our rules are recorded."""


def jobs_query(*, is_recorded: bool) -> str:
    """All of the worst jobs: those that are stuck, then those short of ranks, then those with most cores."""

    def of(name: str) -> str:
        runs = QUANTITIES[name].of_runs
        return f"({runs.rule if is_recorded else f'({runs.expression})'} or {QUANTITIES[name].of_alone})"

    cores = of("neuroncores")
    stuck = STATES.index(JobState.STUCK)
    score = (
        f"{cores} + (1e8 * ({of('state')} == bool {stuck}) or 0 * {cores})"
        f" + (1e7 * ({of('world_size')} - {of('ranks')} > bool 0) or 0 * {cores})"
    )
    worst = f"topk({MOST_JOBS}, {score})"

    def told(text: str, what: str) -> str:
        return f'label_replace({text}, "{OF}", "{what}", "run_id", ".*")'

    # A run whose parts have several names is called as most of its ranks are.
    name = f"topk by (run_id) (1, sum by (run_id, job_name) (neurontools_job_ranks{{{_OF_RUNS}}}))"
    ranks = QUANTITIES["ranks"]
    of_runs = ranks.rule if is_recorded else f"({ranks.of_runs.expression})"
    named = f"({of_runs} + on (run_id) group_left (job_name) 0 * {name})"
    by_job = [told(ranks.of_alone, "ranks"), *(told(of(what), what) for what in QUANTITIES if what != "ranks")]
    by_run = [told(named, "ranks"), told(SLOW.rule if is_recorded else f"({_SLOW_UNRECORDED})", SLOW_RANK)]
    # `and` comes before `or`: each list is bounded once, by what tells one of its jobs from another.
    bounded = (
        f"({' or '.join(series)}) and on ({key}) {worst}" for series, key in ((by_job, _KEY), (by_run, "run_id"))
    )
    return " or ".join((*bounded, told(f"count({cores})", JOB_COUNT)))
