"""Kinds of faults, what may be asked for, and plans of it: the same seed tells the same story."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.driver.kernel_log import HARDWARE_ERRORS
from neurontools.driver.neuron_runtime import DEFAULT_TIMEOUT_SECONDS
from neurontools.faults.kinds import FOUND_WITHIN_SECONDS, KINDS, FaultDuration, FaultEffect, FaultKind
from neurontools.faults.requests import (
    DEFAULT_FAULT_MIX,
    FaultPlan,
    FaultRequest,
    ImpossibleFault,
    InvalidFaultPlan,
    parse_plan,
    schedule_faults,
)
from neurontools.model import EccCounters, StatusCounters
from neurontools.model.finding import FindingKind
from tests.harness.paths import ROOT
from tests.harness.pictures import is_as_stored

FACTS = {"device": 3, "core": 1, "engine": 0, "timeout_ms": 30000, "model": "model.neff", "collectives": 3}


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_what_a_kind_names_is_there_and_fits_its_effect(kind: FaultKind) -> None:
    assert set(kind.ecc) <= set(EccCounters.__slots__)
    assert kind.counter is None or f"{kind.counter}_total" in StatusCounters.__slots__
    assert kind.kernel_error is None or kind.kernel_error in HARDWARE_ERRORS
    assert set(kind.findings) <= set(FindingKind)
    assert (kind.found_within_seconds is None) is (not kind.findings)
    for line in kind.log:
        assert line.function.startswith("TDRV:")
        assert "{" not in line.text.format_map(FACTS)
    fails = kind.effect in (FaultEffect.FAILS, FaultEffect.HANGS, FaultEffect.HANGS_IN_COLLECTIVE)
    assert not fails or (kind.status and kind.log), "an execution that fails says why"
    passing = kind.lasts in (FaultDuration.ONE_EXECUTION, FaultDuration.PROCESS)
    assert not (passing and (kind.ecc or kind.component or kind.loses_device)), "executions alone meet it"


def test_the_manual_has_the_times_until_findings_of_the_table() -> None:
    written = re.findall(r"^\.It Cm ([a-z-]+) Ta (\d+)$", Path("man/neuron-fault.1").read_text(), re.MULTILINE)
    assert dict(written) == {
        kind.name: f"{kind.found_within_seconds:g}"
        for kind in KINDS.values()
        if kind.found_within_seconds not in (None, FOUND_WITHIN_SECONDS)
    }
    assert KINDS["hang-compute"].found_within_seconds == DEFAULT_TIMEOUT_SECONDS + FOUND_WITHIN_SECONDS


BUSY = FaultPlan(seed=7, duration_seconds=10_000, mean_seconds_between_faults=100)


def test_the_same_seed_tells_the_same_story_and_another_one_another() -> None:
    assert schedule_faults(BUSY, [16, 16]) == schedule_faults(BUSY, [16, 16])
    alone = schedule_faults(BUSY, [16])
    assert alone != schedule_faults(replace(BUSY, seed=8), [16])
    # What happens on a host does not depend on the others.
    assert tuple(each for each in schedule_faults(BUSY, [16, 12, 1]) if each.host_index == 0) == alone


def test_a_story_is_in_order_of_time_and_as_busy_as_asked_for() -> None:
    told = schedule_faults(replace(BUSY, duration_seconds=50_000), [16])
    moments = [each.at_seconds for each in told]
    assert moments == sorted(moments)
    assert 400 < len(told) < 600
    assert {each.request.device_index for each in told} == set(range(16))


def test_kinds_have_their_shares() -> None:
    told = schedule_faults(replace(BUSY, mix={"dma-abort": 3, "bit-flip": 1}, duration_seconds=90_000), [16])
    count = Counter(each.request.kind for each in told)
    assert set(count) == {"dma-abort", "bit-flip"}
    assert 2 < count["dma-abort"] / count["bit-flip"] < 4.5


def test_a_host_that_is_lost_is_lost_as_a_whole_and_changes_nothing_else_of_the_story() -> None:
    told = schedule_faults(replace(BUSY, mix={"host-lost": 1, "bit-flip": 1}), [16])
    other = schedule_faults(replace(BUSY, mix={"dma-abort": 1, "bit-flip": 1}), [16])
    assert {each.request.kind for each in told} == {"host-lost", "bit-flip"}
    assert [each.at_seconds for each in told] == [each.at_seconds for each in other]
    for one, another in zip(told, other, strict=True):
        wanted = None if one.request.kind == "host-lost" else another.request.device_index
        assert one.request.device_index == wanted


def test_without_figures_faults_are_as_rare_as_published() -> None:
    days = 86_400.0
    told = schedule_faults(FaultPlan(seed=1, duration_seconds=54 * days), [16] * 1024)
    assert 350 < len(told) < 490, "419 faults of 16,384 devices in 54 days"
    assert set(DEFAULT_FAULT_MIX) <= set(KINDS)


RUBBISH = {
    "seed = ": "it is no TOML",
    "sead = 7": "sead is no key of a plan",
    "seed = -1": "seed: -1 is no seed",
    "seed = true": "seed: True is no seed",
    "duration_seconds = 0": "duration_seconds: 0 is no number of seconds",
    "duration_seconds = nan": "duration_seconds: nan is no number of seconds",
    "mean_seconds_between_faults = 'often'": "often is no number of seconds",
    "for_seconds = 1e99": "for_seconds: 1e\\+99 is no number of seconds",
    **dict.fromkeys(("mix = {}", "mix = 3"), "mix: give a table"),
    "mix = { explosion = 1 }": "explosion is no kind of fault",
    "mix = { dma-abort = 0 }": "mix.dma-abort: 0 is no share",
}


@given(st.text(max_size=60))
def test_a_plan_that_is_none_is_told_in_a_line(text: str) -> None:
    for rubbish, said in RUBBISH.items():
        with pytest.raises(InvalidFaultPlan, match=said):
            parse_plan(rubbish)
    try:
        parse_plan(text)
    except InvalidFaultPlan as error:
        assert str(error).isprintable()
    with pytest.raises(InvalidFaultPlan, match="more than 1000 faults on a host"):
        schedule_faults(replace(BUSY, mean_seconds_between_faults=0.001), [16])


NUMBERS = st.none() | st.floats() | st.integers(-5, 2**70)
ANYTHING = st.fixed_dictionaries(
    {"kind": st.sampled_from([*KINDS, "", "x" * 500, "dma-abort\x1b[2J\n"])},
    optional={
        "device_index": st.none() | st.integers(-3, 2**40),
        "neuroncore_index": st.none() | st.integers(-3, 2**40),
        "pid": st.none() | st.integers(-3, 2**40),
        "after_executions": st.none() | st.integers(-3, 2**70),
        "after_seconds": NUMBERS,
        "for_seconds": NUMBERS,
        "probability": NUMBERS,
        "amount": NUMBERS,
        "part": st.none() | st.text(max_size=5),
        "seed": st.integers(-3, 2**70),
    },
)


@given(ANYTHING)
def test_rubbish_is_told_in_one_harmless_line(asked: dict[str, Any]) -> None:
    try:
        request = FaultRequest(**asked)
    except ImpossibleFault as error:
        assert str(error).isprintable()
        assert len(str(error)) < 300
    else:
        targets = (request.device_index, request.neuroncore_index, request.pid)
        assert sum(target is not None for target in targets) == int(not KINDS[request.kind].loses_host)
        for value in (request.after_seconds, request.for_seconds, request.probability, request.amount):
            assert value is None or math.isfinite(value)


ONE_TARGET = "give one of a device, a NeuronCore and a process"
SAID: list[tuple[dict[str, Any], str]] = [
    ({"kind": "dma-abrt", "device_index": 0}, "did you mean dma-abort?"),
    ({"kind": "dma-abort"}, ONE_TARGET),
    ({"kind": "host-lost", "device_index": 0}, "it affects the whole host"),
    ({"kind": "dma-abort", "device_index": 0, "pid": 3}, ONE_TARGET),
    ({"kind": "dma-abort", "device_index": 0, "probability": 1.5}, "1.5 is no probability"),
    ({"kind": "dma-abort", "device_index": 0, "for_seconds": 0}, "0 s is no duration"),
    ({"kind": "dma-abort", "device_index": 0, "amount": 2}, "this fault has no amount"),
    ({"kind": "ecc-corrected", "device_index": 0, "amount": 1.5}, "a whole number from 1"),
    ({"kind": "ecc-corrected", "device_index": 0, "after_executions": 3}, "no execution meets it"),
    ({"kind": "slow-core", "device_index": 0, "peer_device_index": 1}, "it affects no single link"),
    ({"kind": "slow-link", "device_index": 1, "peer_device_index": 1}, "a link connects two devices"),
    ({"kind": "slow-link", "neuroncore_index": 1, "peer_device_index": 0}, "a link connects two devices"),
]


def test_it_says_what_is_wrong() -> None:
    for asked, said in SAID:
        with pytest.raises(ImpossibleFault) as refused:
            FaultRequest(**asked)
        assert said in str(refused.value)


PAGE = ROOT / "docs/faults.md"
COLUMNS = ("kind", "lasts", "execution", "device counter", "core counter", "kernel line", "findings")


def table_row(kind: FaultKind) -> tuple[str, ...]:
    has_status = bool(kind.status) and not kind.corrupts_results
    return (
        f"`{kind.name}`",
        kind.lasts.partition(":")[0],
        f"NRT_{kind.status.name}({int(kind.status)})" if has_status else kind.effect.value,
        ", ".join(name.removesuffix("_total") for name in kind.ecc),
        kind.counter or "",
        kind.kernel_error or "",
        ", ".join(kind.findings),
    )


def test_the_page_of_faults_has_each_kind() -> None:
    lines = (COLUMNS, ("---",) * len(COLUMNS), *map(table_row, KINDS.values()))
    table = "".join(f"| {' | '.join(cell or '-' for cell in line)} |\n" for line in lines)
    head, begin, rest = PAGE.read_text("utf-8").partition("<!-- table -->\n")
    _, end, tail = rest.partition("<!-- /table -->\n")
    assert is_as_stored(f"{head}{begin}\n{table}\n{end}{tail}", PAGE), "UPDATE_GOLDEN=1 writes it anew"
