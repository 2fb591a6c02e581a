"""The page of many hosts, at any size, of any hosts."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from neurontools.cli.ls.fleet import fleet_health_text, fleet_table
from neurontools.fleet.document import csv_text, document, document_json
from neurontools.fleet.hosts import HostAddress, Reach
from neurontools.fleet.jobs import fleet_jobs
from neurontools.fleet.models import fleet_models
from neurontools.fleet.states import HostState, grouping_choices, worst_first
from neurontools.fleet.summary import SummaryJob
from neurontools.model import Finding, Health, Severity
from neurontools.views.drawing.glyphs import ASCII, UNICODE, Glyphs
from neurontools.views.drawing.lines import THEMES, line_width, plain_text
from neurontools.views.fleet_hosts import group_alike, list_rows
from neurontools.views.fleet_page import FleetContext, fleet_lines, fleet_page, matches_filter
from tests.harness.document_lines import document_lines
from tests.harness.faulty_host import faulty_host
from tests.harness.fleet import live, lost
from tests.harness.full_host import full_host
from tests.harness.pictures import is_as_stored, rounded, screen_rows
from tests.harness.scenario_host import ScenarioHost
from tests.harness.snapshots import snapshot_of

GOLDEN = Path(__file__).parent / "golden"
IDLE = snapshot_of("trn1.32xlarge")
BUSY = ScenarioHost("trn2.48xlarge", "steady")
BUSY.at(29.0)
AT_WORK = BUSY.at(30.0)
NASTY = "\x1b[2J\u202e語" * 60
SICK = replace(
    IDLE,
    health=Health(tuple(range(16)), (), (Finding("stuck", Severity.CRITICAL, NASTY, "x", 1.0, device_indices=(3,)),)),
)
HOSTS = [
    live("idle", IDLE),
    live("busy", AT_WORK),
    live("sick", SICK),
    lost("gone", NASTY, live("gone", AT_WORK, 40.0)),
    lost("never", "ssh: connect to host never port 22: Connection refused"),
    HostState(HostAddress("x" * 200, Reach.SSH, "x")),
]


def context(states: list[HostState], glyphs: Glyphs = UNICODE, cursor: int = 0) -> FleetContext:
    rows, jobs = list_rows(states, worst_first), fleet_jobs(states)
    return FleetContext(
        rows, tuple(states), jobs, fleet_models(states), 100.0, 1.7e9, 1.0, cursor=cursor, glyphs=glyphs
    )


def rows_of(states: list[HostState], width: int = 140, height: int = 40) -> list[str]:
    return [plain_text(line) for line in fleet_page(context(states), width, height).lines]


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize("size", [(20, 5), (40, 12), (80, 24), (140, 40), (300, 80), (1, 1)])
def test_it_fills_the_screen_exactly(size: tuple[int, int], glyphs: Glyphs) -> None:
    width, height = size
    for cursor in (-1, 0, 5):
        page = fleet_page(context(HOSTS, glyphs, cursor), width, height)
        assert len(page.lines) == height
        assert {line_width(line) for line in page.lines} == {width}
        assert {style.split("+")[0] for line in page.lines for _, style in line} <= THEMES["dark"].styles.keys()
        text = "".join(text for line in page.lines for text, _ in line)
        assert text.isprintable()
        assert glyphs is UNICODE or text.isascii()


def test_narrow_titles_and_totals_end_with_a_whole_word() -> None:
    states = [live("sick", SICK), *(live(f"host-{number}", AT_WORK) for number in range(59))]
    title, totals, *_ = rows_of(states, 80, 24)
    assert title.startswith(" neuron-top: 60 hosts, 60 live [synthetic] ")
    assert "59 live [simulated, synthetic load]" in rows_of(states[1:], 80, 24)[0]
    assert " cores: " in totals
    assert "…" not in title + totals


def test_the_page_is_as_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """At three widths, of hosts as they are and as groups, with a job that is slow; then as commands print it."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    job = SummaryJob("slow", 4, 2, 8, 0.5, 2.5, 0.31, Severity.WARNING, "run", (0, 1, 8), state="compiling")
    states = [
        *HOSTS[:4],
        live("full", full_host()[-1]),
        live("second", AT_WORK, jobs=(replace(job, world_size=8),), job_count=1),
    ]
    grouped = replace(context(states), rows=list_rows(states, worst_first, "type"), group_by="type", filter_text="a")
    pages = [fleet_page(context(states), 100, 24), fleet_page(context(states), 160, 25), fleet_page(grouped, 240, 22)]
    models = tuple(replace(fleet_models(states)[0], name=f"model {number}") for number in range(6))
    many = [live(f"host-{count}", replace(IDLE, devices=IDLE.devices[:count])) for count in range(1, 16)]
    pages += [fleet_page(replace(context(many), models=models), 90, 20)]
    lines = [row for page in pages for row in screen_rows(page)]
    lines += map(plain_text, fleet_lines(context(states, cursor=-1), 120))
    few = [states[4], HOSTS[4]]
    answer = document(few, 100.0, 1.7e9, ("hosts:3: wrong",), "type", jobs=fleet_jobs(few), models=fleet_models(few))
    lines += [fleet_table(states), fleet_health_text(states), csv_text(None) + csv_text(answer)]
    few.append(live("faulty", faulty_host()))
    answer = document(few, 100.0, 1.7e9, ("hosts:3: wrong",), "type", jobs=fleet_jobs(few), models=fleet_models(few))
    lines += document_lines(json.loads(rounded(json.loads(document_json(answer)))), "hosts")
    assert is_as_stored("\n".join(lines), GOLDEN / "fleet.txt"), "fleet.txt differs; UPDATE_GOLDEN=1 writes it anew"


def test_a_clock_that_is_ahead_is_shown() -> None:
    ahead = replace(live("a", IDLE), clock_ahead_seconds=3600.0)
    assert any("its clock is 1 h 0 m ahead" in row for row in rows_of([ahead], 240, 20))


def test_hosts_that_are_alike_are_one_row_however_many() -> None:
    states = [live(f"host-{number}", IDLE if number % 2 else AT_WORK) for number in range(200)]
    groups = group_alike(states)
    assert sorted(len(group.states) for group in groups) == [100, 100]
    text = "\n".join(rows_of(states))
    assert " 100 x trn1.32xlarge" in text
    assert "200 hosts, 200 live" in text
    assert "3,200 devices" in text
    printed_once = "\n".join(map(plain_text, fleet_lines(context(states, cursor=-1), 120)))
    assert all(f" host-{number} " in printed_once for number in range(200))


def test_what_is_missing_or_wrong_has_a_sign_of_its_own() -> None:
    gone = Finding("device_missing", Severity.CRITICAL, "gone", "x", 1.0, device_indices=(2,))
    devices = tuple(device for device in IDLE.devices if device.index != 2)
    state = live("a", replace(IDLE, devices=devices, health=Health(tuple(range(16)), (), (gone,))))
    row = next(row for row in rows_of([state]) if "1 x trn1" in row)
    assert "··?·············" in row
    assert f"···{UNICODE.bad}············" in rows_of([live("b", SICK)])[3]


def test_a_filter_is_words_in_the_row() -> None:
    assert [state.place.name for state in HOSTS if matches_filter(state, "LOST refused")] == ["never"]
    assert [state.place.name for state in HOSTS if matches_filter(state, "trn1 critical")] == ["sick"]
    assert sum(matches_filter(state, "") for state in HOSTS) == len(HOSTS)


def test_jobs_are_above_the_hosts_with_what_holds_them_up_first() -> None:
    def part(name: str, **changes: object) -> SummaryJob:
        told = SummaryJob(name, 16, 8, 16, 0.5, 2.5, 0.31, Severity.OK, name * 6, (0, 1, 8), state="training")
        return replace(told, **changes)  # type: ignore[arg-type]

    jobs = (
        part("well", world_size=8),
        part("slow", world_size=8, state="compiling", state_seconds=720.0),
        part(NASTY, missing_ranks=(8,)),
    )
    states = [live("a", AT_WORK, jobs=jobs)]
    for size in ((60, 20), (140, 40), (300, 60)):
        page = fleet_page(context(states), *size)
        assert {line_width(line) for line in page.lines} == {size[0]}
        assert "".join(text for line in page.lines for text, _ in line).isprintable()
    rows = rows_of(states, 160)
    titles = next(number for number, row in enumerate(rows) if "PROBLEM" in row)
    assert "8/16" in rows[titles + 1]
    assert "rank 8 of a, ranks 9-15 are missing" in rows[titles + 1]
    compiling = next(row for row in rows if " slow " in row)
    assert "compiling 12m" in compiling
    assert "31%" in compiling
    assert any("WORST" in row for row in rows[titles:])
    many = [live(f"host-{number}", IDLE, jobs=(part(f"job {number}"),)) for number in range(40)]
    text = "\n".join(rows_of(many, 120))
    assert "more jobs" in text
    assert "WORST" in text


@pytest.mark.parametrize(
    ("severity", "state", "sign"),
    [
        (Severity.NOTICE, "training", UNICODE.good),
        (Severity.NOTICE, "a state of a newer daemon", "?"),
        (Severity.WARNING, "training", UNICODE.warn),
    ],
)
def test_a_job_has_the_sign_of_its_warning_or_of_an_unknown_state(severity: Severity, state: str, sign: str) -> None:
    job = SummaryJob("one", 8, 8, 8, 0.5, 2.5, 0.31, severity, "key", (0, 1, 8), state=state)
    (row,) = (row for row in rows_of([live("a", AT_WORK, jobs=(job,))]) if " one " in row)
    assert row[1] == sign


@pytest.mark.parametrize(
    ("users", "count", "text"),
    [
        (("synth-ada",), 1, "synth-ada"),
        (("ada",), None, "ada + ?"),
        (("ada", "bob"), 2, "2 users"),
        (("ada", "bob"), None, "2+ users"),
        ((), 20, "20 users"),
        ((), 1, "1 user"),
        ((), None, "-"),
        ((NASTY,), 1, "\\x1b[2J\\u…"),
    ],
)
def test_whose_a_job_is_stands_beside_it_where_there_is_room(
    users: tuple[str, ...], count: int | None, text: str
) -> None:
    (job,) = fleet_jobs([live("a", IDLE, jobs=(SummaryJob("train", 2, 1, 1, None, None, None, Severity.OK),))])
    drawn = replace(context(HOSTS), jobs=(replace(job, users=users, user_count=count),))
    for width, there in ((119, (False, False)), (120, (True, False)), (132, (True, True))):
        rows = [plain_text(line) for line in fleet_page(drawn, width, 40).lines]
        titles, row = next(pair for pair in pairwise(rows) if "RANKS" in pair[0])
        assert ("USER" in titles, "STEP" in titles.split()) == there
        place = titles.find("USER")
        assert place < 0 or row[place : place + 10].strip() == text


def test_a_job_of_several_hosts_is_counted_once() -> None:
    def part(name: str, run_id: str | None, first: int) -> SummaryJob:
        return SummaryJob(name, 1, 1, 2, None, None, None, Severity.OK, run_id, (first, 1, 1))

    own, run = part("own", None, 0), "0123456789ab"
    states = [
        live("a", IDLE, jobs=(part("run", run, 0), own), job_count=2),
        live("b", IDLE, jobs=(part("run", run, 1),), job_count=1),
    ]
    assert rows_of(states)[1].endswith("   2 jobs")
    assert rows_of([states[1]])[1].endswith("   1 job")
    (both,) = list_rows(states, worst_first, "type")
    assert both.state.summary is not None
    assert both.state.summary.job_count == 2
    (untold,) = list_rows([*states, live("c", IDLE, jobs=(), job_count=1)], worst_first, "type")
    assert untold.state.summary is not None
    assert untold.state.summary.job_count is None, "which runs c has is not told"


def test_groups_fold_and_open_and_are_told_as_one_host() -> None:
    racks = [("a", IDLE), ("a", AT_WORK), ("b", IDLE), ("", SICK)]
    states = []
    for number, (rack, snapshot) in enumerate(racks):
        state = live(f"host-{number}", snapshot)
        states.append(replace(state, place=replace(state.place, labels=(("rack", rack),) if rack else ())))
    assert grouping_choices(states) == ("alike", "type", "job", "user", "rack")
    rows = list_rows(states, worst_first, "rack", {"rack=a"})
    assert [row.name for row in rows] == ["+ no rack, 1 host", "- a, 2 hosts", "  host-0", "  host-1", "+ b, 1 host"]
    of_a = rows[1].state.summary
    assert of_a is not None
    parts = [state.summary for state in states[:2] if state.summary is not None]
    assert of_a.neuroncore_count == sum(part.neuroncore_count or 0 for part in parts)
    assert of_a.utilization_ratio == parts[1].utilization_ratio, "the mean over the held cores"
    assert rows[0].state.severity is Severity.CRITICAL
    page = fleet_page(replace(context(states), rows=rows, group_by="rack"), 140, 40)
    assert "Hosts by rack" in "".join(map(plain_text, page.lines))
    assert [row.key for row in rows] == ["rack=no rack", "rack=a", "host-0", "host-1", "rack=b"]
    assert matches_filter(states[0], "rack=a")
    assert not matches_filter(states[2], "rack=a")


def test_equal_hosts_are_one_row_and_others_themselves() -> None:
    states = [live(f"host-{number}", IDLE) for number in range(20)]
    states += [live("odd", SICK), lost("gone", "no route"), lost("away", "no route")]
    rows = list_rows(states, worst_first, "alike")
    assert [row.name for row in rows] == ["odd", "+ lost, 2 hosts", "+ trn1.32xlarge, health not known, free, 20 hosts"]
    assert rows[1].state.summary is None
