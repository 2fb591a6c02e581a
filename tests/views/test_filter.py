"""The filter language: what passes, and what is told of a text that is no filter."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from neurontools.model import Attribution, Job, Snapshot
from neurontools.views.drawing.figures import Figures
from neurontools.views.process_filter import (
    InvalidFilter,
    InvalidQuantity,
    join_filters,
    parse_filter,
    parse_quantity,
    quote_value,
)
from neurontools.views.process_table import BY_KEY
from tests.harness.scenario_host import ScenarioHost

HOST = [(host := ScenarioHost("trn1.32xlarge", "steady")).at(29.0), host.at(30.0)][-1]


def four_processes() -> Snapshot:
    """Four processes, of two users, one of which nothing is known."""
    first, second, third, fourth = HOST.processes[:4]
    return replace(
        HOST,
        processes=(
            replace(first, user="root", tag="mlp a", command="python train.py --lr=0.1"),
            replace(second, user="ann", tag="bert", command="python bert.py (large)", job=Job("process group 77")),
            replace(third, user="ann", tag="mlp-b", attribution=Attribution(pod_name="p-0", pod_namespace="ns")),
            replace(fourth, user=None, tag='quo"te', command="", executions_per_second=None, total_latency=None),
        ),
    )


FIGURES = list(Figures(four_processes()).by_pid.values())


def passing(text: str) -> list[int]:
    test = parse_filter(text)
    return [number for number, figures in enumerate(FIGURES) if test(figures)]


def test_the_processes_are_as_the_tests_take_them() -> None:
    assert [figures.process.neuroncore_indices for figures in FIGURES] == [(0,), (1,), (2,), (3,)]
    assert all(0.01 < (figures.utilization_ratio or 0) < 1 for figures in FIGURES)
    assert all((figures.flops_per_second or 0) > 1e12 for figures in FIGURES)


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("", [0, 1, 2, 3]),
        ("mlp", [0, 2]),
        ("mlp ann", [2]),
        ("user=ann and mlp", [2]),
        ("mlp or bert", [0, 1, 2]),
        ("mlp OR bert user=ann", [0, 1, 2]),
        ("(mlp or bert) user=ann", [1, 2]),
        ("not mlp", [1, 3]),
        ("not not mlp", [0, 2]),
        ("not(mlp or bert)", [3]),
        ("not mlp or user=root", [0, 1, 3]),
        ("user != ann", [0, 3]),
        ("user=ann tag ~ mlp", [2]),
        ('tag="mlp a"', [0]),
        ("tag='mlp a'", [0]),
        ('"--lr=0.1"', [0]),
        ('"or"', []),
        ("command~--lr=0.1", [0]),
        ("bert.py(large)", []),
        ('"(large)"', [1]),
        ("command~(large)", [1]),
        ('tag="quo\\"te"', [3]),
        ("ns/p-0", [2]),
        ('"group 77"', [1]),
        ("where=ns/p-0", [2]),
        ("cores=2", [2]),
        ("cores=0-1,3", [0, 1, 3]),
        ("cores!=0-1", [2, 3]),
        ("cores>=2", [2, 3]),
        ("cores=63", []),
        ("count=1", [0, 1, 2, 3]),
        ("count>1", []),
        ("device=0", [0, 1]),
        ("util>0 util<=100%", [0, 1, 2, 3]),
        ("flops>50TFLOPS or flops>1e12", [0, 1, 2, 3]),
        ("flops<1G", []),
        ("execs>=0/s", [0, 1, 2]),
        ("not execs>=0", [3]),
        ("p99<5min", [0, 1, 2]),
        ("mem<20GB or mem>=20GiB", [0, 1, 2, 3]),
        (f"pid={FIGURES[1].pid}", [1]),
        (f"pid~{str(FIGURES[1].pid)[2:]}", [1]),
    ],
)
def test_what_passes(text: str, passed: list[int]) -> None:
    assert passing(text) == passed


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("util>nan", "'nan' is not a value of util; give percent, such as 5 or 5%"),
        ("util>inf", "'inf' is not a value of util"),
        ("util>1e999", "is not a value of util"),
        ("util>1_0", "is not a value of util"),
        ("mem>5min", "'5min' is not a value of mem; give bytes, such as 20GB"),
        ("p99>20GB", "give a time, such as 5ms, 30s or 5min"),
        ("flops>50W", "give FLOPS, such as 50TFLOPS"),
        ("cores>0-3", "cores> takes one index"),
        ("cores=x", "give indices, such as 63 or 0-3,8"),
        ("cores=²", "give indices"),
        ("cores=0,5-2", "5-2 is not a range of cores; give the lower index first, as 2-5"),
        ("colour=red", "unknown column 'colour'; columns are pid, user"),
        ("--lr=0.1", "quote it to search for the word"),
        ("=5", "unknown column '=5'"),
        ("user<ann", "user is text: use = != or ~"),
        ("user=", "user= needs a value"),
        ('tag="a', "the quote at character 5 is not closed"),
        ("(mlp", "the ( at character 1 is not closed"),
        ("mlp)", "unmatched ) at character 4"),
        ("()", "a term is missing at character 2"),
        ("mlp or", "a term is missing after 'or'"),
        ("mlp and", "a term is missing after 'and'"),
        ("and mlp", "a term is missing before the 'and' at character 1"),
        ("or mlp", "a term is missing at character 1"),
        ("not", "a term is missing after 'not'"),
        ("(" * 21 + "a" + ")" * 21, "more than 20 nested parentheses"),
        ("a" * 1001, "longer than 1000 characters"),
    ],
)
def test_what_is_told_of_a_wrong_filter(text: str, told: str) -> None:
    with pytest.raises(InvalidFilter) as raised:
        parse_filter(text)
    assert told in str(raised.value)


PIECES = st.sampled_from([*BY_KEY, *"= != < > <= ~ ( ) \" ' \\ or and not 5 % nan GB - ,".split(), " "])


@given(st.text(max_size=60) | st.lists(PIECES, max_size=20).map("".join) | st.lists(PIECES, max_size=20).map(" ".join))
@example("not " * 300)
@example("cores=" + "9" * 400)
def test_any_text_is_a_filter_or_gives_one_line(text: str) -> None:
    try:
        test = parse_filter(text)
    except InvalidFilter as error:
        assert str(error)
        assert str(error).isprintable()
    else:
        assert [test(figures) in (True, False) for figures in FIGURES] == [True] * 4


@given(st.text(min_size=1, max_size=30).filter(lambda text: "\0" not in text))
def test_a_quoted_text_is_found_whatever_is_in_it(text: str) -> None:
    figures = replace(FIGURES[0], process=replace(FIGURES[0].process, tag=text))
    assert parse_filter(f"tag={quote_value(text)}")(figures)
    assert parse_filter(quote_value(text))(figures)


def test_filters_that_are_joined_all_have_to_hold() -> None:
    assert join_filters("", " ") == ""
    assert join_filters("mlp or bert", "") == "mlp or bert"
    assert passing(join_filters("mlp or bert", f"user={quote_value('ann')}")) == [1, 2]


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("5", "ratio", 0.05),
        ("5 %", "ratio", 0.05),
        ("1.5 TiB", "bytes", 1.5 * 2**40),
        ("1h30m", "seconds", 5400.0),
        ("2 m 5 s", "seconds", 125.0),
        ("1.5e3", "flops", 1500.0),
        ("2/s", "rate", 2.0),
        ("-1", "", -1.0),
    ],
)
def test_quantities(text: str, unit: str, value: float) -> None:
    assert parse_quantity(text, unit) == pytest.approx(value)


def test_every_unit_and_prefix_has_its_factor() -> None:
    seconds = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "": 1.0}
    seconds |= dict.fromkeys("s sec secs second seconds".split(), 1)
    seconds |= dict.fromkeys("m min mins minute minutes".split(), 60) | dict.fromkeys("h hour hours".split(), 3600)
    seconds |= dict.fromkeys("d day days".split(), 86400)
    for unit, factor in seconds.items():
        assert parse_quantity(f"3 {unit}", "seconds") == pytest.approx(3 * factor, rel=1e-12), unit
        assert parse_quantity(f"1s 3{unit or 's'}", "seconds") == pytest.approx(1 + 3 * factor, rel=1e-12), unit
    for power, prefix in enumerate(("", *"kmgtpe")):
        for unit in ("", "b", "ib"):
            assert parse_quantity(f"3{prefix}{unit}", "bytes") == 3 * 1024**power
        for unit in ("", "flops", "flop/s"):
            assert parse_quantity(f"3{prefix}{unit}", "flops") == pytest.approx(3 * 1000**power, rel=1e-12)
        for kind in ("rate", ""):
            assert parse_quantity(f"3{prefix}", kind) == pytest.approx(3 * 1000**power, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "unit"), [("", ""), ("5s", "bytes"), ("GB", "bytes"), ("5x", "seconds"), ("1h30", "seconds"), ("٣", "")]
)
def test_what_is_no_quantity(text: str, unit: str) -> None:
    with pytest.raises(InvalidQuantity, match="give "):
        parse_quantity(text, unit)
