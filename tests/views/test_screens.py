"""Screens of hosts that are not as usual: what is missing, unknown, faulty, or more than the screen has room for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neurontools import catalog, model
from neurontools.catalog.facts import ultraserver_node
from neurontools.client.events import EventSeverity, HostEvent
from neurontools.model import Snapshot, health
from neurontools.views.drawing.glyphs import ASCII
from neurontools.views.drawing.lines import TextPage
from neurontools.views.drawing.render_context import RenderContext, ShownMoment
from neurontools.views.memory_sections import all_node_keys
from neurontools.views.overview_page import job_rows
from neurontools.views.screen import draw_screen, page_named
from tests.harness.faulty_host import faulty_host
from tests.harness.full_host import full_host
from tests.harness.pictures import is_as_stored, screen_rows, without_repeated
from tests.harness.snapshots import host_with_links, snapshot_of
from tests.harness.still_feed import StillFeed, snapshots

GOLDEN = Path(__file__).parent / "golden"
HOST = faulty_host()
FULL = full_host()[-1]
PID = HOST.processes[0].pid


def screen(snapshot: Snapshot, width: int, height: int, **choices: Any) -> TextPage:
    context = RenderContext.from_snapshot(snapshot, clock=ShownMoment("LIVE"), **choices)
    context.verdicts = tuple(health.verdicts(snapshot))
    draw = draw_screen if context.page == "overview" else page_named(context.page).draw
    return draw(context, width, height)


def topologies() -> Iterator[TextPage]:
    for links, kind in (
        ([(1, 2), (0,), (0,)], "line"),
        ([(2, 3), (2, 3), (0, 1), (1, 0)], "ring"),
        ([()], "single"),
        ([()] * 5, "switched"),
        ([(12, 3, 4, 1), (13, 0, 5, 2)], "torus_2d"),
        ([], "single"),
    ):
        yield screen(host_with_links(links, kind), 60, 8, page="topology", device_index=len(links) - 1)
    yield screen(HOST, 44, 21, page="topology", device_index=12, glyphs=ASCII)
    yield screen(HOST, 84, 24, page="topology", device_index=1, colour_by="memory", pid=PID)
    for name, index in (("trn2u.48xlarge", 0), ("trn3s.48xlarge", 3)):
        snapshot = snapshot_of(name)
        node = ultraserver_node(catalog.load(name).ultraserver, index)
        instance = replace(snapshot.instance, ultraserver_id="us-1", ultraserver_node=node)
        yield screen(replace(snapshot, instance=instance), 96, 12, page="topology", device_index=5)


def overviews() -> Iterator[TextPage]:
    context = RenderContext.from_snapshot(HOST)
    unfolded = frozenset(row.key for row in job_rows(context))
    yield screen(HOST, 118, 44, unfolded=unfolded, cursor=2, message="done", tagged=frozenset((PID,)))
    yield screen(HOST, 64, 20, unfolded=unfolded, cursor=9, show_flops=True, glyphs=ASCII)
    yield screen(HOST, 210, 34, layout="compact", pid=PID, is_legend_shown=True)
    yield screen(HOST, 100, 26, is_tree_shown=True, opened=all_node_keys(context), cursor=9, pid=PID)
    yield screen(HOST, 78, 9, pid=HOST.processes[1].pid)


def processes() -> Iterator[TextPage]:
    unfolded = frozenset(row.key for row in job_rows(RenderContext.from_snapshot(HOST)))
    for pid in range(3):
        yield screen(HOST, 118, 20, page="processes", details_pid=HOST.processes[pid].pid)
    yield screen(HOST, 150, 22, page="processes", unfolded=unfolded, cursor=2, sort="util", is_descending=True)
    yield screen(
        HOST, 80, 16, page="processes", unfolded=unfolded, cursor=9, then_sort="pid", sort="job", filter_text="a"
    )
    yield screen(HOST, 90, 14, page="processes", details_pid=PID, is_time_shown=True)
    yield screen(HOST, 90, 10, page="processes", filter_text="nobody")


def others() -> Iterator[TextPage]:
    now = HOST.taken_at_unix_seconds
    events = tuple(
        HostEvent(now - 60 * number, "error", severity, f"event {number}", device_index=number % 2, times=number + 1)
        for number, severity in enumerate((EventSeverity.WARNING, EventSeverity.INFO, EventSeverity.CRITICAL) * 2)
    )
    yield screen(HOST, 110, 30, page="health", events=events, cursor=1)
    yield screen(HOST, 90, 16, page="health", events=events, pid=PID)
    ended = tuple(replace(each, pid=number, user=f"user{number}") for number in range(30) for each in FULL.ended[:1])
    yield screen(HOST, 100, 12, page="usage", ended=ended, cursor=3)
    yield screen(HOST, 100, 12, page="usage")
    vcpus = tuple(replace(FULL.host.vcpu_average or model.VcpuUsage(0, 0, 0, 0, 0, 0, 0)) for _ in range(192))
    yield screen(replace(HOST, host=FULL.host), 100, 24, page="host", vcpus=vcpus, cursor=2)
    for page in ("history", "heatmap"):
        yield screen(HOST, 80, 8, page=page)
    timeline = StillFeed(snapshots()[:40]).timeline
    series = timeline.series(39)
    for page in ("history", "heatmap", "overview"):
        yield screen(
            timeline.snapshot(39), 70, 28, page=page, series=series, events=timeline.events(39), device_index=3
        )


@pytest.mark.parametrize("part", [topologies, overviews, processes, others])
def test_screens_are_as_stored(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    rows = without_repeated(row for page in part() for row in screen_rows(page))
    name = f"screens_{part.__name__}.txt"
    assert is_as_stored("\n".join(rows) + "\n", GOLDEN / name), f"{name} differs; UPDATE_GOLDEN=1 writes it anew"
