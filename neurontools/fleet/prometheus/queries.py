"""PromQL queries for hosts and jobs.

neurond exports the numbers of its host (`exporters.host_families`), so no query reads the series of cores. Jobs on
several hosts use recording rules if Prometheus has them, otherwise the metrics. The rules are in
deploy/prometheus/neuron.rules.yml, and their expressions are those of this module. Each query returns the values of all
hosts. A sample costs about 85 bytes of JSON, whatever its value. So several small integers share one sample, as digits
of one number below 2**53 (`PackedQuery`). The highest value of a digit means unknown. A job on several hosts is
identified by its run, a job on one host by the host and the job's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from neurontools.model.jobs import LEAST_RATIO, JobState

SNAPSHOT_TIMESTAMP = "neurontools_snapshot_timestamp_seconds"
"""A series that neurond exports for every host."""


@dataclass(frozen=True, slots=True)
class RecordedQuantity:
    """A value for each run: the name of its recording rule, and the expression that the rule records."""

    rule: str
    expression: str


MOST_JOBS = 50
"""Limit on jobs in an answer. A job has at most thirteen samples of about 90 bytes."""

SAMPLE_OF = "of"
"""The label that says what a sample is: a key of JOB_QUANTITIES, `SLOW_RANK`, or `JOB_COUNT`."""

SLOW_RANK, JOB_COUNT = "slow_rank", "jobs"
JOB_STATES = tuple(JobState)
"""The number of a job state is its index in this tuple. If a job's hosts differ, the lowest number counts."""

_RUN, _ALONE = "run_id", "instance, job_name"
_OF_RUNS, _OF_ALONE = 'run_id!=""', 'run_id=""'
_KEY = "run_id, instance, job_name"
_JOB_SEVERITIES = ("notice", "warning", "critical")


@dataclass(frozen=True, slots=True)
class JobQuantity:
    """A value for each job: the name of its recording rule, and a function that builds its expression.

    Only jobs on several hosts have the rule. The arguments of the function are the labels to aggregate by, and a label
    matcher.
    """

    rule: str
    build_expression: Callable[[str, str], str]

    @property
    def of_runs(self) -> RecordedQuantity:
        """The rule and the expression for jobs on several hosts."""
        return RecordedQuantity(self.rule, self.build_expression(_RUN, _OF_RUNS))

    @property
    def of_alone(self) -> str:
        """The expression for jobs on one host."""
        return self.build_expression(_ALONE, _OF_ALONE)


def _over_hosts(how: str, metric: str) -> Callable[[str, str], str]:
    name, argument = how.partition(" ")[::2]
    inside = f"{argument}, " if argument else ""
    return lambda by, chosen: f"{name} by ({by}) ({inside}neurontools_job_{metric}{{{chosen}}})"


def _mfu(by: str, chosen: str) -> str:
    mfu, cores = f"neurontools_job_mfu_ratio{{{chosen}}}", "neurontools_job_neuroncores"
    return f"sum by ({by}) ({mfu} * {cores}) / sum by ({by}) ({cores} and {mfu})"


def _state(by: str, chosen: str) -> str:
    of_each = (f'{at} * neurontools_job_state{{{chosen}, state="{state}"}}' for at, state in enumerate(JOB_STATES))
    return f"min by ({by}) ({' or '.join(of_each)})"


def _severity(by: str, chosen: str) -> str:
    """Returns the expression for the highest severity of findings on a job's processes.

    The value is 0 if there are no findings and the health of the hosts is known.
    """
    ranks = f"group by ({_KEY}) (neurontools_job_ranks{{{chosen}}})"
    found = " or ".join(
        f'{at} * group by (instance, job_name, severity) (neurontools_finding_seconds{{severity="{severity}"}})'
        for at, severity in enumerate(_JOB_SEVERITIES, 1)
    )
    gravest = f"max by ({by}) ({ranks} * on (instance, job_name) group_left () max by (instance, job_name) ({found}))"
    judged = f"max by ({by}) (0 * {ranks} * on (instance) group_left () group by (instance) (neurontools_health))"
    return f"{gravest} or {judged}"


JOB_QUANTITIES = {
    "ranks": JobQuantity("run:neuron_ranks:sum", _over_hosts("sum", "ranks")),
    "world_size": JobQuantity("run:neuron_world_size:max", _over_hosts("max", "world_size")),
    "neuroncores": JobQuantity("run:neuron_neuroncores:sum", _over_hosts("sum", "neuroncores")),
    "hosts": JobQuantity("run:neuron_hosts:count", _over_hosts("count", "ranks")),
    "state": JobQuantity("run:neuron_job_state:min", _state),
    "since_step": JobQuantity("run:neuron_seconds_since_last_step:min", _over_hosts("min", "seconds_since_last_step")),
    "steps_per_second": JobQuantity("run:neuron_steps_per_second:min", _over_hosts("min", "steps_per_second")),
    "requests_per_second": JobQuantity("run:neuron_requests_per_second:sum", _over_hosts("sum", "requests_per_second")),
    "request_p99": JobQuantity("run:neuron_request_p99_seconds:max", _over_hosts("max", "request_p99_seconds")),
    "step_seconds": JobQuantity("run:neuron_step_seconds:median", _over_hosts("quantile 0.5", "step_seconds")),
    "mfu": JobQuantity("run:neuron_mfu:avg", _mfu),
    "severity": JobQuantity("run:neuron_job_findings_severity:max", _severity),
}
"""Maps values of the label SAMPLE_OF to quantities. The value of `severity` is a number of `Severity`."""

_WAIT = f"neurontools_job_rank_collective_wait_seconds{{{_OF_RUNS}}}"
LEAST_WAIT = RecordedQuantity("run:neuron_rank_wait:least", f"min by (run_id) ({_WAIT})")


def _gain(least: str, world_size: str) -> str:
    """Returns the expression for the share of the step time that a straggler costs.

    The straggler is the one rank that waits least in collectives.
    """
    held_up = f"min by (run_id) ({_WAIT} > on (run_id) group_left () {least})"
    return (
        f"({held_up} - {least}) / max by (run_id) (neurontools_job_step_seconds{{{_OF_RUNS}}})"
        f" and on (run_id) count by (run_id) ({_WAIT} == on (run_id) group_left () {least}) == 1"
        f" and on (run_id) count by (run_id) ({_WAIT}) == {world_size}"
    )


def _slow(least: str, gain: str) -> str:
    """Returns the expression for the `gain` of a straggler with its rank as a label; no value if the gain is small."""
    slow_ranks = f"group by (run_id, instance, rank) ({_WAIT} == on (run_id) group_left () {least})"
    return f"{slow_ranks} * on (run_id) group_left () ({gain} > {LEAST_RATIO})"


_WORLD_SIZE = JOB_QUANTITIES["world_size"].of_runs
GAIN = RecordedQuantity("run:neuron_slow_rank_gain:ratio", _gain(LEAST_WAIT.rule, _WORLD_SIZE.rule))
SLOW = RecordedQuantity("run_rank:neuron_slow_rank_gain:ratio", _slow(LEAST_WAIT.rule, GAIN.rule))
_SLOW_UNRECORDED = _slow(
    f"({LEAST_WAIT.expression})", f"({_gain(f'({LEAST_WAIT.expression})', f'({_WORLD_SIZE.expression})')})"
)

JOB_RULES = (*(quantity.of_runs for quantity in JOB_QUANTITIES.values()), LEAST_WAIT, GAIN, SLOW)
PROBED = JOB_QUANTITIES["neuroncores"].rule
"""A metric that each run has if Prometheus records our rules."""


def jobs_query(*, is_recorded: bool) -> str:
    """Returns the query for the worst jobs: stuck jobs first, then jobs with missing ranks, then the largest jobs."""

    def job_expression(name: str) -> str:
        runs = JOB_QUANTITIES[name].of_runs
        return f"({runs.rule if is_recorded else f'({runs.expression})'} or {JOB_QUANTITIES[name].of_alone})"

    cores = job_expression("neuroncores")
    stuck = JOB_STATES.index(JobState.STUCK)
    score = (
        f"{cores} + (1e8 * ({job_expression('state')} == bool {stuck}) or 0 * {cores})"
        f" + (1e7 * ({job_expression('world_size')} - {job_expression('ranks')} > bool 0) or 0 * {cores})"
    )
    worst = f"topk({MOST_JOBS}, {score})"

    def with_label(text: str, quantity: str) -> str:
        return f'label_replace({text}, "{SAMPLE_OF}", "{quantity}", "run_id", ".*")'

    # If the parts of a run have several names, the name of most of its ranks is used.
    name = f"topk by (run_id) (1, sum by (run_id, job_name) (neurontools_job_ranks{{{_OF_RUNS}}}))"
    ranks = JOB_QUANTITIES["ranks"]
    of_runs = ranks.rule if is_recorded else f"({ranks.of_runs.expression})"
    named = f"({of_runs} + on (run_id) group_left (job_name) 0 * {name})"
    by_job = [
        with_label(ranks.of_alone, "ranks"),
        *(with_label(job_expression(quantity), quantity) for quantity in JOB_QUANTITIES if quantity != "ranks"),
    ]
    by_run = [with_label(named, "ranks"), with_label(SLOW.rule if is_recorded else f"({_SLOW_UNRECORDED})", SLOW_RANK)]
    # The parentheses are needed because `and` binds tighter than `or`.
    bounded = (
        f"({' or '.join(series)}) and on ({key}) {worst}" for series, key in ((by_job, _KEY), (by_run, "run_id"))
    )
    return " or ".join((*bounded, with_label(f"count({cores})", JOB_COUNT)))


MOST_FINDINGS = 100  # limit of listed findings per severity, longest first; further findings are only counted
LOOKBACK = "1h"
CLOCK_SECONDS = 60
FRESH_SECONDS = 10  # an older snapshot adds to the age of its host
DOWN, GONE = "down", "gone"
FULL_RATIO = 1000
_CORES = 600  # more cores than any host has: 64 devices of 8 cores are 512
_EACH_HOST = f"group by (instance) ({SNAPSHOT_TIMESTAMP})"
_SEVERITIES = ("critical", "warning", "notice")


@dataclass(frozen=True, slots=True)
class PackedField:
    """An integer in a packed sample: its name, the base of its digit, and its PromQL expression."""

    name: str
    base: int
    expression: str

    @property
    def unknown(self) -> int:
        """The digit that means unknown."""
        return self.base - 1


class PackedQuery:
    """Packs several integers of each host into one sample. The last integer is the lowest digit."""

    def __init__(self, *parts: PackedField) -> None:
        self.parts = parts

    @property
    def query(self) -> str:
        """The PromQL expression, with one sample per host."""
        terms, place = [], 1
        for part in reversed(self.parts):
            # Recording rules may add labels, so `max by` reduces them to one sample per host.
            bounded = f"clamp_max(max by (instance) ({part.expression}), {part.unknown - 1})"
            terms.append(f"{place} * ({bounded} or {part.unknown} * {_EACH_HOST})")
            place *= part.base
        return " + ".join(reversed(terms))

    def read(self, value: float) -> dict[str, int | None]:
        """Unpacks the integers of a sample, by name; None is unknown."""
        if not isfinite(value) or not 0 <= value < 2**53:
            return dict.fromkeys((part.name for part in self.parts), None)
        rest = int(value)
        found: dict[str, int | None] = {}
        for part in reversed(self.parts):
            rest, number = divmod(rest, part.base)
            found[part.name] = None if number == part.unknown else number
        return found


PROBE = f'count({{__name__="{PROBED}"}})'
"""Counts the runs with recorded rules."""


MEANINGS = {
    "identity": "which hosts there are",
    "counts": "held and free cores, jobs and users",
    "states": "utilization and health",
    "devices": "the condition of devices",
    "rates": "steps and requests a second, and which models there are",
    "findings": "the texts of findings",
    "lost": "which hosts are lost",
    "clocks": "whose clock is wrong or snapshot is old",
    "jobs": "which jobs there are",
}
"""The purpose of each query, for messages."""


_COUNTS = PackedQuery(
    PackedField("neuroncore_count", _CORES, "neurontools_neuroncores"),
    PackedField("held_neuroncore_count", _CORES, "neurontools_neuroncores_held"),
    PackedField("busy_neuroncore_count", _CORES, "neurontools_neuroncores_busy"),
    PackedField("free_neuroncore_count", _CORES, "neurontools_neuroncores_free"),
    PackedField("job_count", _CORES, "neurontools_jobs"),
    PackedField("problem_count", 100, "neurontools_warnings"),
)


def _thousandths(metric: str) -> str:
    return f"round({FULL_RATIO} * clamp_min({metric}, 0))"


_STATES = PackedQuery(
    PackedField("utilization", 10_000, _thousandths("neurontools_held_utilization_ratio")),
    PackedField("mfu", 10_000, _thousandths("neurontools_held_mfu_ratio")),
    PackedField("severity", 10, "neurontools_health"),
    *(PackedField(severity, 100, f'neurontools_findings{{severity="{severity}"}}') for severity in _SEVERITIES),
)
_HOST_RATES = " or ".join(
    f'label_replace(max by (instance) (neurontools_{name}_per_second), "{SAMPLE_OF}", "{name}", "instance", ".*")'
    for name in ("steps", "requests")
)

MOST_MODELS = 50
"""Limit on models in an answer. A model has at most seven samples of about 90 bytes."""

_ON_HOST = "neurontools_host_model_"
_MODEL_REQUESTS = f"{_ON_HOST}requests_per_second"
MODEL_QUANTITIES = {
    "hosts": f'count by (model) (group by (instance, model) ({{__name__=~"{_ON_HOST}.+"}}))',
    "neuroncores": f"sum by (model) ({_ON_HOST}neuroncores)",
    "requests_per_second": f"sum by (model) ({_MODEL_REQUESTS})",
    "request_p99_seconds": f"max by (model) ({_ON_HOST}request_p99_seconds)",
    "queue_depth": f"sum by (model) ({_ON_HOST}queue_depth)",
    "queue_wait_seconds": (
        f"sum by (model) ({_ON_HOST}queue_wait_seconds * {_MODEL_REQUESTS})"
        f" / (sum by (model) ({_MODEL_REQUESTS} and {_ON_HOST}queue_wait_seconds) > 0)"
    ),
    "device_memory_bytes": f"sum by (model) ({_ON_HOST}memory_bytes)",
}
"""Maps values of the label SAMPLE_OF to expressions for each served model."""

_MODELS = " or ".join(
    f'label_replace({expression}, "{SAMPLE_OF}", "{name}", "model", ".*")'
    for name, expression in MODEL_QUANTITIES.items()
)
# A model without device memory counts as 0.
_LARGEST = f"topk({MOST_MODELS}, {MODEL_QUANTITIES['device_memory_bytes']} or 0 * {MODEL_QUANTITIES['hosts']})"
_RATES = f"{_HOST_RATES} or (({_MODELS}) and on (model) {_LARGEST})"


class OverviewQueries:
    """The queries of one refresh, with or without recording rules for jobs."""

    counts, states = _COUNTS, _STATES

    def __init__(self, *, are_jobs_recorded: bool = False, are_users_wanted: bool = False) -> None:
        self.texts = {
            "identity": _IDENTITY,
            "counts": _by_user(self.counts.query) if are_users_wanted else self.counts.query,
            "states": self.states.query,
            "devices": "max by (instance) (neurontools_device_conditions)",
            "rates": _RATES,
            "findings": _FINDINGS,
            "lost": _LOST,
            "clocks": _CLOCKS,
            "jobs": jobs_query(is_recorded=are_jobs_recorded),
        }


_USERS = (
    'group by (instance, user) (neurontools_user_processes{user!=""})'
    ' or group by (instance, uid) (neurontools_user_processes{user=""})'
)


def _by_user(query: str) -> str:
    """Extends a query so that it repeats a host's sample for each user, with the user as a label.

    The added label costs a quarter of a sample. A host without users keeps its one sample, and a host that does not
    know the user of a process has one without a label.
    """
    return f"({query}) * on (instance) group_right () ({_USERS} or on (instance) {_EACH_HOST})"


# VictoriaMetrics knows the timestamp of a host that has gone for minutes more, hence the "and".
_AGE = f"min by (instance) (time() - timestamp({SNAPSHOT_TIMESTAMP}) and {SNAPSHOT_TIMESTAMP})"
_WHO = "instance, node, instance_type, instance_id, ultraserver_id"
# An address that moved to another instance has two identities. Selects one, because the query fails with two.
_IDENTITY = (
    f"{_AGE} * on (instance) group_left (node, instance_type, instance_id, ultraserver_id)"
    f" topk by (instance) (1, group by ({_WHO}) (instance_info)) or on (instance) {_AGE}"
)
_FINDING = "instance, finding, severity, neuron_devices, job_name, synthetic, injected, reason"
_FINDINGS = " or ".join(
    f'topk({MOST_FINDINGS}, max by ({_FINDING}) (neurontools_finding_seconds{{severity="{severity}"}}))'
    for severity in _SEVERITIES[:2]
)
_SILENT = "max by (instance) (up) == 0"
_LAST_SNAPSHOT_AGE = (
    f"(time() - max by (instance, node) (max_over_time({SNAPSHOT_TIMESTAMP}[{LOOKBACK}]))"
    f" unless on (instance) {_EACH_HOST})"
)
# Selects targets that are down, if their scrape job has scraped a neurond within LOOKBACK.
_NEVER = (
    "-1 - max by (instance, node)"
    f" (up == 0 and on (job) group by (job) (max_over_time({SNAPSHOT_TIMESTAMP}[{LOOKBACK}])))"
)
_LOST = (
    f'label_replace({_LAST_SNAPSHOT_AGE} and on (instance) ({_SILENT}), "link", "{DOWN}", "instance", ".*")'
    f' or on (instance) label_replace({_LAST_SNAPSHOT_AGE}, "link", "{GONE}", "instance", ".*")'
    f' or on (instance) label_replace({_NEVER} unless on (instance) {_EACH_HOST}, "link", "{DOWN}", "instance", ".*")'
)
_OFF = f"max by (instance) ({SNAPSHOT_TIMESTAMP} - timestamp({SNAPSHOT_TIMESTAMP}))"
_CLOCKS = f"{_OFF} > {CLOCK_SECONDS} or {_OFF} < -{FRESH_SECONDS}"
