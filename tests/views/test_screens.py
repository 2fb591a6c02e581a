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
from neurontools.model import Finding, Severity, Snapshot, health
from neurontools.model.process import Job
from neurontools.views.drawing.glyphs import ASCII
from neurontools.views.drawing.lines import TextPage
from neurontools.views.drawing.render_context import RenderContext, ShownMoment
from neurontools.views.memory_sections import all_node_keys
from neurontools.views.overview_page import job_rows
from neurontools.views.screen import draw_screen, page_named
from tests.harness.full_host import full_host
from tests.harness.pictures import is_as_stored, screen_rows, without_repeated
from tests.harness.scenario_host import ScenarioHost
from tests.harness.snapshots import host_with_links, snapshot_of
from tests.harness.still_feed import StillFeed, snapshots

GOLDEN = Path(__file__).parent / "golden"
HALF = ScenarioHost("trn1.32xlarge", "steady", neuroncores=8)
HALF.at(29.0)
HOST = HALF.at(30.0)  # 8 ranks on ND 0 to 3
FULL = full_host()[-1]
PID = HOST.processes[0].pid


def finding(kind: str, severity: Severity, *devices: int, **fields: Any) -> Finding:
    reason = "a reason of so many words that it does not fit on the line of a screen with eighty cells for its text"
    return Finding(kind, severity, reason, "what to do", HOST.taken_at_unix_seconds - 90, devices, **fields)


def faulty() -> Snapshot:
    """Returns a host with a missing device, findings of each severity, and ranks of each kind."""
    first, second, third, *others, last = HOST.processes
    now = HOST.taken_at_seconds
    training = model.TrainingCounters(5, compiling_since_seconds=now - 12, last_step_at_seconds=now - 30)
    changed = (
        replace(
            first,
            training=training,
            training_rates=model.TrainingRates(2.5, 80.0, 0.125, 2.0**20, 1024.0, 0.25),
        ),
        replace(
            second,
            training=training,
            executions_per_second=123_456.7,
            served_models=FULL.processes[0].served_models * 4,
            inferred_fields=("core_indices",),
            synthetic=False,
            reporting=False,
        ),
        replace(third, command="python evaluate.py --all", job=Job("evaluation", 3, 9, None, 2, 5), tag="\x1b[1m語"),
        replace(last, command="python evaluate.py --all", job=Job("evaluation", 4, 9, None, 2, 5)),
    )
    ratios = (0.97, 0.92, 0.6, 0.03, 0.0, None)
    cores = tuple(
        replace(core, utilization_ratio=ratios[core.index] if core.index < len(ratios) else core.utilization_ratio)
        for core in HOST.cores
        if core.device_index != 12
    )
    job = {"pid": PID, "pids": tuple(each.pid for each in HOST.processes), "job": "synthetic load steady"}
    findings = (
        finding("stuck", Severity.CRITICAL, 0, **job),
        finding("slow_rank", Severity.NOTICE, 2, part="input wait", **(job | {"pid": others[0].pid})),
        finding("ecc_corrected", Severity.WARNING, 1, part="hbm", injected=True),
        finding("ecc_corrected", Severity.WARNING, 9),
    )
    fault = model.InjectedFault(7, "dma-abort", model.FaultState.HOLDS, (0,), None, None, 0.0, injected_by_pid=4)
    lost = replace(fault, number=8, kind="host-lost", device_indices=(), state=model.FaultState.WAITING)
    return replace(
        HOST,
        processes=(*changed, *others),
        cores=cores,
        devices=tuple(device for device in HOST.devices if device.index != 12),
        health=model.Health(tuple(range(16)), (12,), findings),
        injected_faults=(replace(fault, injected_by_uid=1000), lost),
        warnings=("the kubelet has not answered for 7 s", "the kernel log can't be read"),
    )


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
    yield screen(faulty(), 44, 21, page="topology", device_index=12, glyphs=ASCII)
    yield screen(faulty(), 84, 24, page="topology", device_index=1, colour_by="memory", pid=PID)
    for name, index in (("trn2u.48xlarge", 0), ("trn3s.48xlarge", 3)):
        snapshot = snapshot_of(name)
        node = ultraserver_node(catalog.load(name).ultraserver, index)
        instance = replace(snapshot.instance, ultraserver_id="us-1", ultraserver_node=node)
        yield screen(replace(snapshot, instance=instance), 96, 12, page="topology", device_index=5)


def overviews() -> Iterator[TextPage]:
    host = faulty()
    context = RenderContext.from_snapshot(host)
    unfolded = frozenset(row.key for row in job_rows(context))
    yield screen(host, 118, 44, unfolded=unfolded, cursor=2, message="done", tagged=frozenset((PID,)))
    yield screen(host, 64, 20, unfolded=unfolded, cursor=9, show_flops=True, glyphs=ASCII)
    yield screen(host, 210, 34, layout="compact", pid=PID, is_legend_shown=True)
    yield screen(host, 100, 26, is_tree_shown=True, opened=all_node_keys(context), cursor=9, pid=PID)
    yield screen(host, 78, 9, pid=host.processes[1].pid)


def processes() -> Iterator[TextPage]:
    host = faulty()
    unfolded = frozenset(row.key for row in job_rows(RenderContext.from_snapshot(host)))
    for pid in range(3):
        yield screen(host, 118, 20, page="processes", details_pid=host.processes[pid].pid)
    yield screen(host, 150, 22, page="processes", unfolded=unfolded, cursor=2, sort="util", is_descending=True)
    yield screen(
        host, 80, 16, page="processes", unfolded=unfolded, cursor=9, then_sort="pid", sort="job", filter_text="a"
    )
    yield screen(host, 90, 14, page="processes", details_pid=PID, is_time_shown=True)
    yield screen(host, 90, 10, page="processes", filter_text="nobody")


def others() -> Iterator[TextPage]:
    host = faulty()
    now = host.taken_at_unix_seconds
    events = tuple(
        HostEvent(now - 60 * number, "error", severity, f"event {number}", device_index=number % 2, times=number + 1)
        for number, severity in enumerate((EventSeverity.WARNING, EventSeverity.INFO, EventSeverity.CRITICAL) * 2)
    )
    yield screen(host, 110, 30, page="health", events=events, cursor=1)
    yield screen(host, 90, 16, page="health", events=events, pid=PID)
    ended = tuple(replace(each, pid=number, user=f"user{number}") for number in range(30) for each in FULL.ended[:1])
    yield screen(host, 100, 12, page="usage", ended=ended, cursor=3)
    yield screen(host, 100, 12, page="usage")
    vcpus = tuple(replace(FULL.host.vcpu_average or model.VcpuUsage(0, 0, 0, 0, 0, 0, 0)) for _ in range(192))
    yield screen(replace(host, host=FULL.host), 100, 24, page="host", vcpus=vcpus, cursor=2)
    for page in ("history", "heatmap"):
        yield screen(host, 80, 8, page=page)
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
