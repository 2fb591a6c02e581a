"""Plans: the same seed tells the same story, and rubbish is told in a line."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.faults.kinds import KINDS
from neurontools.faults.plan import USUAL_MIX, BadPlan, FaultPlan, parse_plan, story

BUSY = FaultPlan(seed=7, duration_seconds=10_000, mean_seconds_between_faults=100)


def test_the_same_seed_tells_the_same_story_and_another_one_another() -> None:
    assert story(BUSY, [16, 16]) == story(BUSY, [16, 16])
    assert story(BUSY, [16]) != story(replace(BUSY, seed=8), [16])


def test_what_happens_on_a_host_does_not_depend_on_the_others() -> None:
    alone = story(BUSY, [16])
    assert tuple(each for each in story(BUSY, [16, 12, 1]) if each.host_index == 0) == alone


def test_a_story_is_in_order_of_time_and_as_busy_as_asked_for() -> None:
    told = story(replace(BUSY, duration_seconds=50_000), [16])
    moments = [each.at_seconds for each in told]
    assert moments == sorted(moments)
    assert 400 < len(told) < 600
    assert {each.request.device_index for each in told} == set(range(16))


def test_kinds_have_their_shares() -> None:
    told = story(replace(BUSY, mix={"dma-abort": 3, "bit-flip": 1}, duration_seconds=90_000), [16])
    count = Counter(each.request.kind for each in told)
    assert set(count) == {"dma-abort", "bit-flip"}
    assert 2 < count["dma-abort"] / count["bit-flip"] < 4.5


def test_a_host_that_is_lost_is_lost_as_a_whole_and_changes_nothing_else_of_the_story() -> None:
    told = story(replace(BUSY, mix={"host-lost": 1, "bit-flip": 1}), [16])
    other = story(replace(BUSY, mix={"dma-abort": 1, "bit-flip": 1}), [16])
    assert {each.request.kind for each in told} == {"host-lost", "bit-flip"}
    assert [each.at_seconds for each in told] == [each.at_seconds for each in other]
    for one, another in zip(told, other, strict=True):
        wanted = None if one.request.kind == "host-lost" else another.request.device_index
        assert one.request.device_index == wanted


def test_without_figures_faults_are_as_rare_as_published() -> None:
    days = 86_400.0
    told = story(FaultPlan(seed=1, duration_seconds=54 * days), [16] * 1024)
    assert 350 < len(told) < 490, "419 faults of 16,384 devices in 54 days"


def test_the_usual_mix_names_kinds_that_there_are() -> None:
    assert set(USUAL_MIX) <= set(KINDS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed = ", "it is no TOML"),
        ("sead = 7", "sead is no key of a plan"),
        ("seed = -1", "seed: -1 is no seed"),
        ("seed = true", "seed: True is no seed"),
        ("duration_seconds = 0", "duration_seconds: 0 is no number of seconds"),
        ("duration_seconds = nan", "duration_seconds: nan is no number of seconds"),
        ("mean_seconds_between_faults = 'often'", "often is no number of seconds"),
        ("for_seconds = 1e99", "for_seconds: 1e\\+99 is no number of seconds"),
        ("mix = {}", "mix: give a table"),
        ("mix = 3", "mix: give a table"),
        ("mix = { explosion = 1 }", "explosion is no kind of fault"),
        ("mix = { dma-abort = 0 }", "mix.dma-abort: 0 is no share"),
    ],
)
def test_rubbish_is_told_in_a_line(text: str, said: str) -> None:
    with pytest.raises(BadPlan, match=said):
        parse_plan(text)


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        parse_plan(text)
    except BadPlan as error:
        assert str(error).isprintable()


def test_a_story_of_too_much_is_refused() -> None:
    with pytest.raises(BadPlan, match="more than 1000 faults on a host"):
        story(replace(BUSY, mean_seconds_between_faults=0.001), [16])
