"""Hosts from the answers of a Prometheus: what it has no series of is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import pytest

from neurontools.fleet.prometheus import quantities
from neurontools.fleet.prometheus.overview import Moment, hosts
from neurontools.fleet.prometheus.queries import PROBE, Overview, Packed, Part, has_rules
from neurontools.fleet.prometheus.server import Sample
from neurontools.fleet.states import HostState, Link
from neurontools.model import Severity, SourceKind

ASKED = Overview(is_recorded=True)
NOW = Moment(1000.0, 1.7e9)


def sample(value: float, instance: str = "a:8000", **labels: str) -> Sample:
    return Sample({"instance": instance, **labels}, value)


def of(before: Mapping[str, HostState] | None = None, **answers: tuple[Sample, ...]) -> dict[str, HostState]:
    return {state.place.name: state for state in hosts(ASKED, answers, before or {}, NOW)}


def packed(packed: Packed, **values: int | None) -> float:
    """The sample that a Prometheus makes of these."""
    number = 0
    for part in packed.parts:
        value = values.pop(part.name, None)
        number = number * part.base + (part.unknown if value is None else value)
    assert not values
    return float(number)


def test_several_numbers_are_read_from_one_sample() -> None:
    asked = Packed(Part("cores", 1000, "c"), Part("held", 1000, "h"), Part("ratio", 10_000, "r"))
    assert asked.read(128_032_0500) == {"cores": 128, "held": 32, "ratio": 500}
    assert asked.read(999_000_9999) == {"cores": None, "held": 0, "ratio": None}
    assert Packed(Part("a", 600, "a"), Part("b", 100, "b")).read(598 * 100 + 7) == {"a": 598, "b": 7}
    for none in (float("nan"), float("inf"), -1.0, 2.0**60):
        assert asked.read(none) == {"cores": None, "held": None, "ratio": None}


@pytest.mark.parametrize("parts", [ASKED.counts, ASKED.states])
def test_what_is_packed_is_held_exactly(parts: Packed) -> None:
    assert prod(part.base for part in parts.parts) < 2**53
    assert quantities.CONDITIONS**quantities.DIGITS < 2**53


def test_a_host_that_only_answers_is_live_and_all_else_unknown() -> None:
    state = of(identity=(sample(7.0),))["a:8000"]
    found = state.summary
    assert found is not None
    assert (state.link, state.received_at_seconds, state.severity) == (Link.LIVE, 993.0, None)
    unknown = (found.neuroncore_count, found.held_neuroncore_count, found.free_neuroncore_count, found.job_count)
    assert unknown == (None,) * 4
    assert (found.utilization_ratio, found.mfu_ratio, state.steps_per_second, found.source) == (None,) * 4
    assert (found.devices, found.findings, found.is_judged) == ((), (), False)


def test_all_of_a_host() -> None:
    counts = {"neuroncore_count": 4, "held_neuroncore_count": 2, "busy_neuroncore_count": 1, "free_neuroncore_count": 2}
    counts |= {"job_count": 0, "problem_count": 3}
    finding = {"finding": "stuck", "severity": "critical", "neuron_devices": "1,3-4", "reason": "stands\x1b[2J still"}
    state = of(
        identity=(sample(1.0, instance_type="trn1.2xlarge", instance_id="i-simulated", node="one"),),
        counts=(sample(packed(ASKED.counts, **counts)),),
        states=(sample(packed(ASKED.states, utilization=500, mfu=250, severity=3, critical=1)),),
        devices=(sample(8 + 9 * 2 + 81 * 3 + 729 * 5 + 6561 * 0 + 59049 * 1),),
        steps=(sample(2.5),),
        findings=(sample(60.0, **finding), sample(90.0, **(finding | {"severity": "warning", "reason": "hot"}))),
        clocks=(sample(3600.0),),
    )["one"]
    found = state.summary
    assert found is not None
    assert (state.place.text, state.clock_ahead_seconds, state.severity) == ("ssh:one", 3600.0, Severity.CRITICAL)
    assert (found.source, found.utilization_ratio, found.mfu_ratio) == (SourceKind.SIMULATED, 0.5, 0.25)
    assert {name: getattr(found, name) for name in counts} == counts
    assert (found.unknown_neuroncore_count, state.steps_per_second) == (0, 2.5)
    assert [finding.severity for finding in found.findings] == [Severity.CRITICAL, Severity.WARNING]
    assert found.findings[0].device_indices == (1, 3, 4)
    assert "\x1b" not in found.findings[0].reason
    assert [
        (cell.index, cell.severity, cell.utilization_ratio, cell.held_neuroncore_count) for cell in found.devices
    ] == [
        (0, Severity.CRITICAL, None, None),
        (1, Severity.OK, None, 0),
        (2, Severity.OK, 0.0, None),
        (3, Severity.OK, 0.667, None),
        (5, Severity.OK, None, None),
    ]


def test_users_come_with_the_counts_where_they_are_asked_for() -> None:
    assert "user" not in " ".join(ASKED.texts.values())
    asked = Overview(is_recorded=True, are_users_wanted=True)
    assert asked.texts.keys() == ASKED.texts.keys(), "they are no further query"
    busy, idle = (
        packed(ASKED.counts, neuroncore_count=4, held_neuroncore_count=held, job_count=held) for held in (2, 0)
    )
    counts = (
        sample(busy, user="eve"),
        sample(busy, user="\x1b[2Jada"),
        sample(busy, uid="1000"),
        sample(busy, "b:8000", user="bob"),
        sample(idle, "c:8000"),
    )
    found = of(identity=(sample(1.0), sample(1.0, "b:8000"), sample(1.0, "c:8000")), counts=counts)
    a, b, c = (found[name].summary for name in ("a:8000", "b:8000", "c:8000"))
    assert a is not None
    assert b is not None
    assert c is not None
    assert [summary.held_neuroncore_count for summary in (a, b, c)] == [2, 2, 0], "and each host has its counts once"
    assert (a.user_count, b.users, c.users, c.user_count) == (3, ("bob",), (), None)
    assert a.users == ("1000", *sorted(user for user in a.users if user != "1000"))
    assert "\x1b" not in "".join(a.users)


def test_one_that_was_not_read_for_long_is_lost() -> None:
    ages = (sample(600.0, "old:1"), sample(15.0, "b:1"), sample(20.0, "c:1"))
    found = of(identity=ages)
    assert (found["old:1"].link, found["old:1"].trouble) == (Link.LOST, "Prometheus has not read it for 10 m 0 s")
    assert found["b:1"].link is found["c:1"].link is Link.LIVE
    assert all(state.link is Link.LIVE for state in of(identity=(sample(300.0, "a:1"), sample(290.0, "b:1"))).values())


def test_lost_ones_keep_what_was_known_of_them() -> None:
    before = of(identity=(sample(1.0, instance_type="trn1.2xlarge"), sample(1.0, "b:8000")))
    found = of(before, identity=(), lost=(sample(40.0, link="down"), sample(90.0, "b:8000", link="gone")))
    assert found["a:8000"].trouble == "it does not answer Prometheus"
    assert found["a:8000"].summary == before["a:8000"].summary
    assert found["a:8000"].age_seconds(NOW.seconds) == 40.0
    assert found["b:8000"].trouble == "Prometheus no longer asks it"
    never = of(identity=(), lost=(sample(-1.0, link="down"),))["a:8000"]
    assert (never.summary, never.age_seconds(NOW.seconds)) == (None, None)


def test_hosts_are_called_by_their_node_where_that_is_one() -> None:
    found = of(
        identity=(
            sample(1, "[::1]:8000"),
            sample(1, "b:1", node="twice"),
            sample(1, "c:1", node="twice"),
            sample(1, "d:1", node="d"),
        )
    )
    assert {name: state.place.address for name, state in found.items()} == {
        "[::1]:8000": "::1",
        "b:1": "b",
        "c:1": "c",
        "d": "d",
    }


def test_rules_count_when_they_are_recorded_for_nearly_all() -> None:
    rule, taken = quantities.DEVICES.rule, quantities.TAKEN
    assert rule in PROBE
    assert not has_rules({taken: 10.0})
    assert not has_rules({})
    assert not has_rules({taken: 10.0, rule: 5.0}), "one of two shards has them"
    assert has_rules({taken: 10.0, rule: 9.0})
