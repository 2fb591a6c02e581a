"""The topology page on narrow screens."""

from __future__ import annotations

from neurontools.views.drawing.line import plain
from neurontools.views.drawing.scene import Scene
from neurontools.views.topology.page import topology_page
from tests.harness.scenario_host import ScenarioHost

HOST = ScenarioHost("trn1.32xlarge", "steady")
HOST.at(29.0)
SNAPSHOT = HOST.at(30.0)


def rows_of(width: int) -> list[str]:
    return [plain(line) for line in topology_page(Scene.of(SNAPSHOT, page="topology"), width, 30).lines]


def test_devices_without_room_are_told_by_a_sign_and_those_with_room_have_their_figures() -> None:
    rows = [row for row in rows_of(40) if "[ND" in row]
    assert all(row.endswith("…") for row in rows)
    ratios = [core.utilization_ratio for core in SNAPSHOT.cores[:2]]
    mean = sum(ratio for ratio in ratios if ratio is not None) / 2
    assert f"[ND0 {mean:>5.0%} 0h]" in rows[0]


def test_where_there_is_room_nothing_is_cut() -> None:
    rows = [row for row in rows_of(80) if "[ND" in row]
    assert len(rows) == 4
    assert not any("…" in row for row in rows)
