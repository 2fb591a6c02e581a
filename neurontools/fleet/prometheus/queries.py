"""The queries of an overview: few, and each answers for all hosts.

A sample costs some 85 bytes of JSON, whatever it says of a host. So small whole numbers come several in one sample, as
the digits of one number: `Packed` says which. 2**53 bounds them; a part that is not known is the highest digit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from neurontools.fleet.prometheus import job_queries, quantities
from neurontools.fleet.prometheus.job_queries import jobs_query
from neurontools.fleet.prometheus.quantities import TAKEN, Quantity

MOST_FINDINGS = 100  # of each severity, the longest lasting; of the others the number is told
SEEN_WITHIN = "1h"
CLOCK_SECONDS = 60
DOWN, GONE = "down", "gone"
FULL_RATIO = 1000
_CORES = 600  # more than any host has: 64 devices of 8 are 512
_EACH_HOST = f"group by (instance) ({TAKEN})"
_SEVERITIES = ("critical", "warning", "notice")
_RECORDED_FROM = 0.9


@dataclass(frozen=True, slots=True)
class Part:
    """One of the numbers in a sample: its name, how many digits there are, and its expression."""

    name: str
    base: int
    expression: str

    @property
    def unknown(self) -> int:
        """What stands for a number that is not known."""
        return self.base - 1


class Packed:
    """Several numbers of each host in one sample; the last is the lowest digit."""

    def __init__(self, *parts: Part) -> None:
        self.parts = parts

    @property
    def query(self) -> str:
        """The expression, with a sample for each host."""
        terms, place = [], 1
        for part in reversed(self.parts):
            # Whatever labels a rule's series have besides, here a host has one.
            known = f"clamp_max(max by (instance) ({part.expression}), {part.unknown - 1})"
            terms.append(f"{place} * ({known} or {part.unknown} * {_EACH_HOST})")
            place *= part.base
        return " + ".join(reversed(terms))

    def read(self, value: float) -> dict[str, int | None]:
        """The numbers by name; None is unknown."""
        if not isfinite(value) or not 0 <= value < 2**53:
            return dict.fromkeys((part.name for part in self.parts), None)
        rest = int(value)
        found: dict[str, int | None] = {}
        for part in reversed(self.parts):
            rest, number = divmod(rest, part.base)
            found[part.name] = None if number == part.unknown else number
        return found


PROBE = f'count by (__name__) ({{__name__=~"{TAKEN}|{quantities.DEVICES.rule}|{job_queries.PROBED}"}})'
"""How many hosts there are, and of how many the rules are recorded."""


def has_rules(counts: dict[str, float]) -> bool:
    """Whether our rules are recorded for the hosts, by the answer to PROBE; new hosts may not be yet."""
    recorded = counts.get(quantities.DEVICES.rule, 0.0)
    return recorded > 0 and recorded >= _RECORDED_FROM * counts.get(TAKEN, 0.0)


def has_job_rules(counts: dict[str, float]) -> bool:
    """Whether the rules of jobs are too: without any job that can't be known, and is all the same."""
    return counts.get(job_queries.PROBED, 0.0) > 0


MEANINGS = {
    "identity": "which hosts there are",
    "counts": "held and free cores, jobs and users",
    "states": "utilization and health",
    "devices": "the condition of devices",
    "steps": "steps a second",
    "findings": "what is wrong in words",
    "lost": "which hosts are lost",
    "clocks": "whose clock is wrong",
    "jobs": "which jobs there are",
}
"""What each query of an overview is for."""


class Overview:
    """The queries of one refresh, for a Prometheus that records our rules or for one that does not."""

    def __init__(self, *, is_recorded: bool, are_jobs_recorded: bool = False, are_users_wanted: bool = False) -> None:
        def of(quantity: Quantity) -> str:
            return quantity.rule if is_recorded else quantity.expression

        def thousandths(quantity: Quantity) -> str:
            return f"round({FULL_RATIO} * clamp_min({of(quantity)}, 0))"

        self.counts = Packed(
            Part("neuroncore_count", _CORES, of(quantities.CORES)),
            Part("held_neuroncore_count", _CORES, of(quantities.HELD)),
            Part("busy_neuroncore_count", _CORES, of(quantities.BUSY)),
            Part("free_neuroncore_count", _CORES, of(quantities.FREE)),
            Part("job_count", _CORES, "neurontools_jobs"),
            Part("problem_count", 100, "neurontools_warnings"),
        )
        self.states = Packed(
            Part("utilization", 10_000, thousandths(quantities.HELD_UTILIZATION)),
            Part("mfu", 10_000, thousandths(quantities.MFU)),
            Part("severity", 10, "neurontools_health"),
            *(
                Part(severity, 100, f"{quantities.findings_of(severity, is_recorded=is_recorded)}")
                for severity in _SEVERITIES
            ),
        )
        devices = quantities.DEVICES.rule if is_recorded else quantities.DEVICES_UNRECORDED
        self.texts = {
            "identity": _IDENTITY,
            "counts": _by_user(self.counts.query) if are_users_wanted else self.counts.query,
            "states": self.states.query,
            "devices": f"max by (instance) ({devices})",
            "steps": f"max by (instance) ({of(quantities.STEPS)})",
            "findings": _FINDINGS,
            "lost": _LOST,
            "clocks": _CLOCKS,
            "jobs": jobs_query(is_recorded=are_jobs_recorded),
        }


_USERS = (
    'group by (instance, user) (neurontools_process_info{user!=""})'
    ' or group by (instance, uid) (neurontools_process_info{user="", uid!=""})'
)


def _by_user(query: str) -> str:
    """What is asked of each host, once for each of its users, with that label: a label costs a quarter of a sample.

    A host of which no user is known has its one sample as before.
    """
    return f"({query}) * on (instance) group_right () ({_USERS} or on (instance) {_EACH_HOST})"


_AGE = f"min by (instance) (time() - timestamp({TAKEN}))"
_WHO = "instance, node, instance_type, instance_id, ultraserver_id"
# One of them, where an address has been given to another instance: two would fail the whole query.
_IDENTITY = (
    f"{_AGE} * on (instance) group_left (node, instance_type, instance_id, ultraserver_id)"
    f" topk by (instance) (1, group by ({_WHO}) (instance_info)) or on (instance) {_AGE}"
)
_FINDING = "instance, finding, severity, neuron_devices, job_name, synthetic, reason"
_FINDINGS = " or ".join(
    f'topk({MOST_FINDINGS}, max by ({_FINDING}) (neurontools_finding_seconds{{severity="{severity}"}}))'
    for severity in _SEVERITIES[:2]
)
_SILENT = "max by (instance) (up) == 0"
_SEEN = f"(time() - max by (instance) (max_over_time({TAKEN}[{SEEN_WITHIN}])) unless on (instance) {_EACH_HOST})"
# Down: it is asked and doesn't answer, as far back as is looked; its jobs are those that have a neurond.
_NEVER = f"-1 - max by (instance) (up == 0 and on (job) group by (job) (max_over_time({TAKEN}[{SEEN_WITHIN}])))"
_LOST = (
    f'label_replace({_SEEN} and on (instance) ({_SILENT}), "link", "{DOWN}", "instance", ".*")'
    f' or on (instance) label_replace({_SEEN}, "link", "{GONE}", "instance", ".*")'
    f' or on (instance) label_replace({_NEVER} unless on (instance) {_EACH_HOST}, "link", "{DOWN}", "instance", ".*")'
)
_OFF = f"max by (instance) ({TAKEN} - timestamp({TAKEN}))"
_CLOCKS = f"{_OFF} > {CLOCK_SECONDS} or {_OFF} < -{CLOCK_SECONDS}"
