"""The report on a profile as lines, as data and as a page: it says what the profile says, and nothing acts."""

from __future__ import annotations

import csv
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neurontools.profile import Profile, SourceLine
from neurontools.profile.analysis.comparison import compare
from neurontools.profile.analysis.operators import build_flame_tree
from neurontools.profile.analysis.report import build_report
from neurontools.util.formats import Markup, element, escape_markup
from neurontools.views.drawing.glyphs import ASCII, UNICODE
from neurontools.views.drawing.lines import THEMES, ascii_only, line_width, plain_text
from neurontools.views.profile_difference import profile_difference_json, profile_difference_text
from neurontools.views.profile_document import CSV_TABLES, profile_csv_lines, profile_json
from neurontools.views.profile_report import profile_page
from neurontools.views.profile_web_page import profile_web_page
from tests.harness import chromium
from tests.harness.chromium import chromium as browser
from tests.harness.examples import examples
from tests.harness.html_page import html_tree
from tests.harness.pictures import is_as_stored, screen_rows
from tests.harness.profiles import profiles
from tests.harness.trained_profiles import trained

GOLDEN = Path(__file__).parent / "golden"
WIDTH = 140
HOSTILE = "</title><script>alert(1)</script>\x1b[31m\u202e<img src=x onerror=alert(2)>&quot;'\""
_quick = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=examples(50))


def lines(made: list[Profile], width: int = WIDTH, most: int = 10) -> list[str]:
    return [plain_text(line) for line in profile_page(build_report(made), width, UNICODE, most).lines]


def hostile() -> list[Profile]:
    (profile,) = trained(3)
    place = SourceLine(f"/home/{HOSTILE}.py", 1, HOSTILE)
    return [
        replace(
            profile,
            metadata=replace(
                profile.metadata, script=HOSTILE, host=HOSTILE, instance_type=HOSTILE, device_time=HOSTILE
            ),
            state=replace(profile.state, failure=HOSTILE),
            stacks=((place,),) * 3,
            graphs=tuple(replace(each, reason=HOSTILE, hash_text=HOSTILE) for each in profile.graphs),
            operators=tuple(replace(each, name=HOSTILE, scope=HOSTILE, result=HOSTILE) for each in profile.operators),
        )
    ]


def test_the_report_is_as_stored_in_each_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of one rank and of three, the page, the document, the tables, and the difference of two runs."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    one, three = build_report(trained(10)), build_report(trained(7, 3, slow_rank=1))
    longer = build_report(trained(10, 3, slow_rank=1))
    compared = compare(one, three)
    drawn = (
        *screen_rows(profile_page(build_report(trained(10)), WIDTH, UNICODE, 10)),
        *screen_rows(profile_page(longer, WIDTH, UNICODE, 10)),
        *screen_rows(profile_page(longer, 84, ASCII, 1)),
        re.sub(r"(?=<(?:h2|table|tr|figure)\b)", "\n", profile_web_page(three).split("</style>")[1]),
        *(json.dumps({name: value}) for name, value in json.loads(profile_json(three)).items()),
        *("".join(profile_csv_lines(one, table)).replace("\r", "") for table in CSV_TABLES),
        profile_difference_text(["one", "three"], compared, 10),
        *(
            json.dumps({name: value})
            for name, value in json.loads(profile_difference_json(["a", "b"], compared)).items()
        ),
    )
    shown = re.sub(r"[ \n]*\n", "\n", "\n".join(drawn))
    assert is_as_stored(shown, GOLDEN / "report.txt"), "report.txt differs; look at it, then UPDATE_GOLDEN=1 writes it"


def test_several_ranks_stand_beside_each_other_and_the_slow_one_is_named() -> None:
    shown = lines(trained(10, 3, slow_rank=1))
    ranks = [line for line in shown if re.match(r" +[012] +trn ", line)]
    assert len(ranks) == 3
    assert any("straggler: rank 1" in line for line in shown)
    one, other = trained(1, 2)
    other = replace(other, metadata=replace(other.metadata, host="another"))
    assert ", 2 ranks on 2 hosts, 1 step" in lines([one, other])[0]


def test_what_comes_from_a_profile_is_harmless_and_no_line_is_wider_than_the_screen() -> None:
    made = build_report(hostile())
    for width in (60, 80, 120, 200):
        for each in (made, build_report(trained(10, 3, slow_rank=1))):
            page = profile_page(each, width, UNICODE, 10)
            assert all(line_width(line) <= width and plain_text(line).isprintable() for line in page.lines)
            assert {style for line in page.lines for _, style in line} <= THEMES["dark"].styles.keys()
    difference = profile_difference_text(["a", "b"], compare(build_report(trained(3)), made), 10)
    assert all(line.isprintable() for line in difference.splitlines())
    assert profile_json(made).isascii()


@_quick
@given(made=st.lists(profiles(), min_size=1, max_size=3), width=st.integers(20, 200))
def test_whatever_a_profile_has_is_shown(made: list[Profile], width: int) -> None:
    found = build_report(made)
    assert len(found.ranks) == len(made)
    assert build_flame_tree(made).flops == sum(use.flops for use in found.operators)
    page = profile_page(found, width, ASCII, 5)
    assert all(plain_text(ascii_only(line)).isascii() and line_width(line) <= width for line in page.lines)
    json.loads(profile_json(found))
    json.loads(profile_difference_json(["a", "b"], compare(found, build_report(trained(2)))))
    for table in CSV_TABLES:
        assert list(profile_csv_lines(found, table))
    texts_of(profile_web_page(found))


KNOWN_TAGS = frozenset(
    "html head meta title style body h1 h2 p div span b table tr th td figure svg g rect line path text".split()
)


def texts_of(page: str) -> list[str]:
    """Takes a page apart, of which no element does anything; its texts."""
    elements = html_tree(page).all()
    for found in elements:
        assert found.tag in KNOWN_TAGS
        for name, value in found.attributes.items():
            assert not name.startswith("on")
            assert name not in ("style", "href", "src")
            assert "url(" not in (value or "")
    return [part for each in elements if each.tag != "style" for part in each.parts if isinstance(part, str)]


def test_texts_of_a_profile_are_texts_on_the_page() -> None:
    found = texts_of(profile_web_page(build_report(hostile())))
    assert any("<script>alert(1)" in each for each in found)
    assert not any("\x1b" in each or "\u202e" in each for each in found)


def test_markup_escapes_what_is_no_markup() -> None:
    assert element("p", "<b>", Markup("<b>x</b>"), class_='a"b') == '<p class="a&quot;b">&lt;b&gt;<b>x</b></p>'
    assert escape_markup("a\x00\ud800") == "a\\x00\\ud800"


def test_the_page_has_every_section_and_its_figures() -> None:
    page = profile_web_page(build_report(trained(300, 2, slow_rank=1)))
    for picture in html_tree(page).all("svg"):
        *_, width, _ = map(float, (picture.attributes["viewbox"] or "").split())
        for bar in picture.all("rect"):
            left = float(bar.attributes.get("x") or 0)
            assert 0 <= left <= left + float(bar.attributes["width"] or 0) <= width + 0.01
        for area in picture.all("path"):
            assert all(float(x) <= width for x in re.findall(r"[MHL]([\d.]+)", area.attributes["d"] or ""))
    found = texts_of(page)
    titles = ("Ranks", "Operators by module and line", "Memory", "Collectives", "Graphs, and why each was compiled")
    assert set(titles) <= set(found)
    assert "The latest steps, steps 298 to 300, on one clock" in found
    assert "rank 1, NeuronCore 1" in found
    assert "straggler: rank 1 waits least in collectives" in found
    assert any(each.startswith("Linear: ") and "GFLOP" in each for each in found)


def test_a_cell_is_no_formula_of_a_spreadsheet() -> None:
    (profile,) = trained(3)
    formula = replace(profile, operators=tuple(replace(each, name="=cmd()") for each in profile.operators))
    lines = profile_csv_lines(build_report([formula]), "operators")
    assert next(csv.DictReader(lines))["name"] == "'=cmd()"


def test_a_difference_tells_what_changed_and_leaves_out_what_did_not() -> None:
    told = profile_difference_text(
        ["a", "b"], compare(build_report(trained(10, 2)), build_report(trained(10, 2, slow_rank=1))), 10
    )
    assert re.search(r"^execute +450\.0 us +600\.0 us +\+33\.3 %$", told, re.MULTILINE)
    assert re.search(r"^ +\+150\.0 us +200\.0 us +350\.0 us .* aten::mm +train\.py:12$", told, re.MULTILINE)
    assert "input wait" not in told
    mended = profile_difference_text(
        ["a", "b"], compare(build_report(trained(10, 2, slow_rank=1)), build_report(trained(10, 2))), 10
    )
    assert "execution a step: up to 200.0 us predicted, saved 150.0 us\n" in mended
    same = profile_difference_text(["a", "b"], compare(build_report(trained(10)), build_report(trained(10))), 10)
    assert "no differences" in same


@pytest.mark.slow
@pytest.mark.skipif(chromium.PROGRAM is None, reason="chromium is not installed")
def test_a_browser_shows_the_page_without_asking_anybody(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for made in (trained(300, 2, slow_rank=1), hostile()):
        page.write_text(profile_web_page(build_report(made)), "utf-8")
        with browser() as shown:
            shown.load(page.as_uri())
            assert shown.problems == []
            assert shown.requested == [page.as_uri()]
            assert shown.value("document.scripts.length") == 0
            assert shown.value("getComputedStyle(document.body).maxWidth") == "1160px"
            assert shown.value("document.querySelectorAll('svg.flame rect').length") >= 5
            assert shown.value("document.documentElement.scrollWidth <= innerWidth")
