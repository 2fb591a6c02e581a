from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.exporters.monitor.configuration import (
    InvalidConfiguration,
    InvalidDuration,
    MonitorConfiguration,
    parse_configuration,
    parse_duration,
    read_configuration,
)
from neurontools.exporters.monitor.record_types import RUNTIME_GROUPS, SYSTEM_GROUPS
from neurontools.exporters.monitor.recorder import GroupSchedule, group_periods
from neurontools.util.errors import EXIT_NOT_FOUND, EXIT_USAGE, UserError

# What public consumers bring along (Weights & Biases, Scalene, the CloudWatch agent, AWS's guide), in our own words.
VCPU = {"type": "vcpu_usage"}
CONSUMERS: list[Any] = [
    {
        "period": "1s",
        "neuron_runtimes": [{"tag_filter": ".*", "metrics": [{"type": name} for name in RUNTIME_GROUPS]}],
        "system_metrics": [VCPU, {"type": "memory_info"}, {"period": "2s", "type": "neuron_hw_counters"}],
    },
    {"period": "1.0s", "neuron_runtimes": [{"tag_filter": ".*", "metrics": [{"type": "neuroncore_counters"}]}]},
    {"period": "15s", "neuron_runtimes": [], "system_metrics": [{"type": "memory_info"}]},
    {},
]


@pytest.mark.parametrize("document", CONSUMERS)
def test_public_configurations(document: Any) -> None:
    assert parse_configuration(document).notes == ()


def test_periods_are_inherited_downwards() -> None:
    configuration = parse_configuration(
        {
            "period": "2s",
            "neuron_runtimes": [
                {"metrics": [{"type": "memory_used"}, {"type": "execution_stats", "period": "500ms"}]},
                {"period": "1m", "metrics": [{"type": "memory_used"}, {"type": "execution_stats", "period": "1h30m"}]},
            ],
            "system_metrics": [{"type": "memory_info"}, {"type": "vcpu_usage", "period": "1.5s"}],
        }
    )
    assert [seconds for _, seconds in group_periods(configuration)] == [2.0, 0.5, 60.0, 5400.0, 2.0, 1.5]
    assert {seconds for _, seconds in group_periods(MonitorConfiguration.default())} == {5.0}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ([], "the configuration is []; it must be an object, {…}"),
        ({"perod": "5s"}, '"perod": there is no such key; did you mean period?'),
        ({"neuron_runtimes": {}}, "neuron_runtimes is {}; it must be an array of objects"),
        ({"neuron_runtimes": [1]}, "neuron_runtimes[0] is 1; it must be an object, {…}"),
        ({"neuron_runtimes": [{"tag_filter": "("}]}, "neuron_runtimes[0].tag_filter is no regular expression: missing"),
        ({"neuron_runtimes": [{"tag_filter": 1}]}, "neuron_runtimes[0].tag_filter is 1; write a regular expression in"),
        ({"k8s_info": "yes"}, 'k8s_info is "yes"; it can be true, false or {"period": "15s"}'),
    ],
)
def test_what_cannot_be_meant(document: Any, text: str) -> None:
    with pytest.raises(InvalidConfiguration) as raised:
        parse_configuration(document)
    assert str(raised.value).startswith(text)


NO_DURATION = 'not a duration; write a number with a unit (ms, s, m, h), such as "5s" or "1m30s"'
SYSTEM_TYPES = "it can be vcpu_usage, memory_info, neuron_hw_counters"
PROBLEMS: dict[str, Any] = {
    f'period is "soon": {NO_DURATION}; 5 s is used': {"period": "soon"},
    'period is 5: write a duration in quotes, such as "5s"; 5 s is used': {"period": 5},
    'period is "0s": it can be 10ms to 24h; 5 s is used': {"period": "0s"},
    'period is "25h": it can be 10ms to 24h; 5 s is used': {"period": "25h"},
    'neuron_runtimes[0].metrics[0].type is "memory_info" and is left out; it can be neuroncore_counters, memory_used, '
    "neuron_runtime_vcpu_usage, execution_stats": {"neuron_runtimes": [{"metrics": [{"type": "memory_info"}]}]},
    f"system_metrics[1].type is missing and is left out; {SYSTEM_TYPES}": {"system_metrics": [VCPU, {}]},
    f'system_metrics[0].type is "neuron_hardware_info" and is left out; {SYSTEM_TYPES}': {
        "system_metrics": [{"type": "neuron_hardware_info"}, VCPU]  # as a public configuration has it
    },
    'system_metrics[1].type is "vcpu_usage" for the second time; the first one counts': {
        "system_metrics": [VCPU, VCPU]
    },
    'neuroncores_in_use is 7: it can be "devices" or "held"; "devices" is used': {"neuroncores_in_use": 7},
    f'system_metrics[0].period is "x": {NO_DURATION}; 2 s is used': {
        "period": "2s",
        "system_metrics": [VCPU | {"period": "x"}],
    },
}


@pytest.mark.parametrize("text", PROBLEMS)
def test_what_is_left_out_is_told_and_the_rest_goes_on(text: str) -> None:
    document = PROBLEMS[text]
    configuration = parse_configuration({"neuron_runtimes": [], **document, "k8s_info": True})
    assert configuration.problems == (text,)
    assert configuration.k8s_info_period_seconds == configuration.period_seconds
    assert [group.type for group in configuration.system_metrics] == ["vcpu_usage"] * ("system_metrics" in document)


def test_unknown_keys_are_noted_and_skipped() -> None:
    (note,) = parse_configuration({"log_level": 3}).notes
    keys = "period, neuron_runtimes, system_metrics, neuroncores_in_use, k8s_info"
    assert note == f'"log_level" means nothing and is skipped; keys here: {keys}'


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "monitor.conf"
    cases = [(b"{,}", f"{file}:1:2: not JSON"), (b"\xff", "not JSON in UTF-8"), (b"[" * 100_000, "not JSON")]
    for content, text in cases:
        file.write_bytes(content)
        with pytest.raises(UserError) as raised:
            read_configuration(str(file))
        assert text in str(raised.value)
        assert raised.value.exit_code == EXIT_USAGE
    with pytest.raises(UserError, match="No such file") as missing:
        read_configuration(str(tmp_path / "none"))
    assert missing.value.exit_code == EXIT_NOT_FOUND
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(CONSUMERS[0]).encode())
    assert read_configuration(str(file)).period_seconds == 1.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1s", 1), ("1.0s", 1), ("500ms", 0.5), ("1m30s", 90), ("1h", 3600), (".5s", 0.5), ("100us", 1e-4), ("1µs", 1e-6)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "-5s", "5sec", "1e3s", "5s ", "٣s", "1s" * 40])
def test_no_durations(text: str) -> None:
    with pytest.raises(InvalidDuration):
        parse_duration(text)


periods = st.one_of(st.none(), st.sampled_from(["10ms", "1s", "1.0s", "2s", "1m", "24h"]))


def metric(names: tuple[str, ...]) -> st.SearchStrategy[Any]:
    def groups(chosen: list[str]) -> st.SearchStrategy[Any]:
        return st.tuples(*(st.fixed_dictionaries({"type": st.just(name), "period": periods}) for name in chosen))

    return st.lists(st.sampled_from(names), unique=True).flatmap(groups).map(list)


documents = st.fixed_dictionaries(
    {"period": periods},
    optional={
        "neuron_runtimes": st.lists(
            st.fixed_dictionaries(
                {"tag_filter": st.sampled_from([None, "", ".*", "^a", "b$"]), "metrics": metric(RUNTIME_GROUPS)},
                optional={"period": periods},
            ),
            max_size=3,
        ),
        "system_metrics": metric(SYSTEM_GROUPS),
        "k8s_info": st.booleans(),
    },
)


@given(documents)
def test_every_sensible_configuration_is_taken(document: Any) -> None:
    configuration = parse_configuration(json.loads(json.dumps(document)))
    wanted = sum(len(entry["metrics"]) for entry in document.get("neuron_runtimes", ()))
    wanted += len(document.get("system_metrics", ())) + bool(document.get("k8s_info"))
    keys = [key for key, _ in group_periods(configuration)]
    assert len(keys) == len(set(keys)) == wanted


KEYS = ["period", "neuron_runtimes", "system_metrics", "metrics", "type", "tag_filter", "k8s_info", "x"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_any_document_is_taken_or_refused_in_one_line(document: Any) -> None:
    text = ""
    try:
        parse_configuration(document)
    except InvalidConfiguration as error:
        text = str(error)
    assert "\n" not in text


@given(
    st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0, 7.0]), min_size=1, max_size=5), st.lists(st.floats(0, 5), max_size=30)
)
def test_schedule(lengths: list[float], steps: list[float]) -> None:
    schedule = GroupSchedule(enumerate(lengths), 0.0, 5.0)
    now, taken = 0.0, [0] * len(lengths)
    for step in (0.0, *steps):
        now = max(now + step, schedule.next_seconds) if step < 3 else now + step
        is_due = schedule.next_seconds <= now
        due = schedule.collect_due(now)
        assert bool(due) == is_due
        for key in due:
            assert isinstance(key, int)
            taken[key] += 1
        assert schedule.next_seconds > now - 0.002
    for count, seconds in zip(taken, lengths, strict=True):
        assert 1 <= count <= now / seconds + 1.01


def test_schedule_without_groups_has_its_own_period() -> None:
    schedule = GroupSchedule((), 0.0, 5.0)
    assert schedule.collect_due(0.0) == frozenset()
    assert schedule.next_seconds == 5.0
