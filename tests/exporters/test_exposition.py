from __future__ import annotations

import math
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurontools.exporters.exposition import (
    Exposition,
    FamilyDefinition,
    LabelTexts,
    MetricFamily,
    MetricKind,
    accepts_openmetrics,
    encode_openmetrics,
    encode_text,
    escape_label_value,
    label_text,
)
from neurontools.net.acceptor import listen_address
from neurontools.util.terminal import escape_controls
from tests.harness.examples import examples
from tests.harness.waiting import HANG_SECONDS

GAUGE = FamilyDefinition("water_level_ratio", MetricKind.GAUGE, "How full")
COUNTER = FamilyDefinition("drops", MetricKind.COUNTER, "Drops that fell")
INFO = FamilyDefinition("pool", MetricKind.INFO, "Which pool")
FAMILIES = [
    MetricFamily(GAUGE, [('{a="1"}', 0.5), ('{a="2"}', math.inf), ('{a="3"}', math.nan)]),
    MetricFamily(COUNTER, [('{a="1"}', 3), ('{a="2"}', 2**53)], [('{a="1"}', 1.5), ('{a="2"}', 2.5)]),
    MetricFamily(FamilyDefinition("nothing", MetricKind.GAUGE, "No samples"), []),
    MetricFamily(INFO, [('{name="x"}', 1)]),
]


def test_text_format() -> None:
    assert encode_text(FAMILIES).decode() == (
        "# HELP water_level_ratio How full\n# TYPE water_level_ratio gauge\n"
        'water_level_ratio{a="1"} 0.5\nwater_level_ratio{a="2"} +Inf\nwater_level_ratio{a="3"} NaN\n'
        "# HELP drops_total Drops that fell\n# TYPE drops_total counter\n"
        'drops_total{a="1"} 3\ndrops_total{a="2"} 9007199254740992\n'
        "# HELP drops_created Drops that fell\n# TYPE drops_created gauge\n"
        'drops_created{a="1"} 1.5\ndrops_created{a="2"} 2.5\n'
        '# HELP pool_info Which pool\n# TYPE pool_info gauge\npool_info{name="x"} 1\n'
    )


def test_openmetrics_format() -> None:
    assert encode_openmetrics(FAMILIES).decode() == (
        "# HELP water_level_ratio How full\n# TYPE water_level_ratio gauge\n"
        'water_level_ratio{a="1"} 0.5\nwater_level_ratio{a="2"} +Inf\nwater_level_ratio{a="3"} NaN\n'
        "# HELP drops Drops that fell\n# TYPE drops counter\n"
        'drops_total{a="1"} 3\ndrops_created{a="1"} 1.5\n'
        'drops_total{a="2"} 9007199254740992\ndrops_created{a="2"} 2.5\n'
        '# HELP pool Which pool\n# TYPE pool info\npool_info{name="x"} 1\n# EOF\n'
    )


@pytest.mark.parametrize(
    ("value", "text"), [(math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (0.0, "0.0"), (-0.5, "-0.5")]
)
def test_numbers_beside_one_that_is_not_finite(value: float, text: str) -> None:
    lines = encode_text([MetricFamily(GAUGE, [('{a="1"}', value), ('{a="2"}', math.inf)])]).decode().splitlines()
    assert lines[2:] == [f'water_level_ratio{{a="1"}} {text}', 'water_level_ratio{a="2"} +Inf']


def test_nothing_is_an_empty_text_and_an_openmetrics_that_ends() -> None:
    assert (encode_text([]), encode_openmetrics([])) == (b"", b"# EOF\n")


@pytest.mark.parametrize("openmetrics", [False, True])
def test_what_changes_is_written_anew(openmetrics: bool) -> None:
    exposition = Exposition(openmetrics=openmetrics)
    write = encode_openmetrics if openmetrics else encode_text
    other = MetricFamily(COUNTER, [('{a="1"}', 4), ('{a="2"}', 2**53)], FAMILIES[1].created)
    younger = MetricFamily(COUNTER, other.samples, [('{a="1"}', 1.5), ('{a="2"}', 9.0)])
    for families in (FAMILIES, FAMILIES, [FAMILIES[0], other], [younger, FAMILIES[0]], [], FAMILIES):
        assert exposition.document(families).content == write(families)


def test_labels_are_sorted_and_escaped() -> None:
    assert label_text([("b", 'say "hi"'), ("a", "back\\slash\nline")]) == '{a="back\\\\slash\\nline",b="say \\"hi\\""}'
    assert label_text([]) == ""
    assert escape_label_value("a\udcffb\ud800\udfff\ue000") == "a\ufffdb\ufffd\ufffd\ue000"
    assert label_text([("a", "é"), ("b", "z9")]) == '{a="é",b="z9"}'


def unescaped(text: str) -> str:
    out, position = [], 0
    while position < len(text):
        if text[position] == "\\":
            position += 1
            out.append({"n": "\n"}.get(text[position], text[position]))
        else:
            out.append(text[position])
        position += 1
    return "".join(out)


@given(st.text())
def test_escaping_can_be_undone_up_to_control_characters(value: str) -> None:
    written = escape_label_value(value)
    assert "\n" not in written
    assert unescaped(written) == "\n".join(map(escape_controls, value.split("\n")))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@settings(max_examples=examples(30))
@given(value=st.text(alphabet=st.characters(codec="utf-8"), max_size=20))
def test_promtool_takes_any_label_value(value: str) -> None:
    text = encode_text([MetricFamily(GAUGE, [(label_text([("tag", value)]), 1)])])
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("accept", "is_openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,a/b", True),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        ("application/openmetrics-text;version=9.9.9", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text; q=0.0", False),
        ("application/openmetrics-text;q=0.5", True),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=0.0.1", True),
        ("text/plain, application/openmetrics-text", True),
        ("text/plain;version=1.0.0", False),
        ("application/openmetrics-text;version=1.0.0;version=9", False),
    ],
)
def test_negotiation(accept: str, is_openmetrics: bool) -> None:
    assert accepts_openmetrics(accept) is is_openmetrics


def test_label_texts_are_kept_but_not_without_end() -> None:
    label = LabelTexts((("base", "x"),))
    of_pid, rows = label.named("pid"), label.rows("pid", "type", last=("a", "b"))
    first, first_row = of_pid(1), rows(1)
    assert (first, first_row) == ('{base="x",pid="1"}', ('{base="x",pid="1",type="a"}', '{base="x",pid="1",type="b"}'))
    assert of_pid(1) is first
    assert rows(1) is first_row
    assert label.named("pid") is of_pid
    for pid in range(2, 2050):
        of_pid(pid)
        rows(pid)
    assert of_pid(1) is not first
    assert rows(1) is not first_row
    assert (of_pid(1), rows(1)) == (first, first_row)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":8000", (None, 8000)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:9400", ("::1", 9400)),
        ("host:1", ("host", 1)),
    ],
)
def test_addresses(text: str, address: tuple[str | None, int]) -> None:
    assert listen_address(text) == address


@pytest.mark.parametrize("text", ["", "8000x", "host", "host:", "host:99999", "::1:80", "host:-1"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r"port|brackets"):
        listen_address(text)
