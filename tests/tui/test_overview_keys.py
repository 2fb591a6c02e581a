"""What keys do to the overview, without a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neurontools.tui.dashboard import Dashboard
from neurontools.tui.settings import Settings
from neurontools.views.drawing.glyphs import UNICODE
from neurontools.views.drawing.line import plain
from neurontools.views.overview.memory_tree import nodes
from tests.harness.pressed_keys import FIRST_PID, draw, press, text
from tests.harness.scenario_host import ScenarioHost
from tests.harness.still_feed import StillFeed, snapshots


def test_the_sections_and_words_of_the_original(dashboard: Dashboard) -> None:
    shown = text(dashboard)
    for words in (
        "running on i-0123456789abcdef0 (trn1.32xlarge)",
        "NeuronCore v2 Utilization (Avg: ",
        "vCPU Utilization",
        "System vCPU Usage",
        "Runtime vCPU Usage",
        "Memory Usage Summary",
        "Host Used Memory",
        "Device Used Memory",
        "DMA Buffers",
        "App. Memory",
        "Model Code",
        "Runtime Memory",
        "Model Scratchpad",
        "Memory Usage Details",
        "Neuron Apps >[1]:all<",
        "[2]:synthetic-0",
    ):
        assert words in shown, words
    opened = press(dashboard, "x")
    assert all(words in opened for words in ("Model ID", "Device Memory", "Host Memory"))


def test_f_shows_teraflops(dashboard: Dashboard) -> None:
    assert "TFLOPS" not in text(dashboard)
    shown = press(dashboard, "f")
    core = snapshots()[-1].cores[0]
    assert core.flops_per_second is not None
    assert f"{core.flops_per_second / 1e12:.2f}T" in shown
    assert "TFLOPS" not in press(dashboard, "f")


@pytest.mark.parametrize(
    ("flops", "ratio", "figure", "style"),
    [(4.2e9, 0.9, "4.20G", "load4"), (4.2e9, 0.3, "4.20G", "load2"), (0.0, 0.0, "0", "held")],
)
def test_flops_have_the_unit_that_fits_and_idle_is_told_from_free(
    flops: float, ratio: float, figure: str, style: str
) -> None:
    taken = ScenarioHost("trn1.2xlarge", "steady", neuroncores=1).at(30.0)
    first, second = taken.cores
    cores = (replace(first, flops_per_second=flops, utilization_ratio=ratio), second)
    dashboard = Dashboard(StillFeed([replace(taken, cores=cores)]), Settings(show_flops=True), UNICODE)
    assert f"[{figure:>7}]" in text(dashboard)
    assert "[   free]" in text(dashboard)
    styles = {part: style for line in draw(dashboard).lines for part, style in line}
    assert styles[f"{figure:>7}"] == style
    assert styles["   free"] == "dim"


def test_the_tree_opens_node_by_node_and_sums_up(dashboard: Dashboard) -> None:
    press(dashboard, "x")
    dashboard.opened = frozenset()
    shown = press(dashboard, "enter", "down", "right", "down", "enter")
    assert "NC 0  synthetic-0" in shown
    assert "synthetic/train_step.neff" in shown
    assert "10001" in shown
    scene = dashboard.scene()
    assert scene is not None
    rows = nodes(scene)
    for position, node in enumerate(rows):
        inside = [row for row in rows if row.key.rpartition("/")[0] == node.key]
        if inside:
            assert node.device_bytes == sum(row.device_bytes or 0 for row in inside), (position, node)
    assert "train_step" not in press(dashboard, *["left"] * 5)
    press(dashboard, "x")
    assert "train_step" in press(dashboard, "x")
    shown = press(dashboard, "x")
    assert "train_step" not in shown
    assert "Memory Usage Details: 32 models on 16 of 16 devices" in shown


def test_enter_unfolds_a_job_shows_a_process_and_esc_comes_back(dashboard: Dashboard) -> None:
    assert " rank 0 " not in text(dashboard)
    assert f"{FIRST_PID} rank 0" in press(dashboard, "enter")
    assert f"Process {FIRST_PID + 1}" in press(dashboard, "down", "down", "enter")
    shown = press(dashboard, "escape")
    assert dashboard.page == "overview"
    assert f"{FIRST_PID} rank 0" in shown
    press(dashboard, "left")  # to its job
    assert dashboard.list.cursor == 0
    assert " rank 0 " not in press(dashboard, "left")
    assert " rank 0 " in press(dashboard, "right")


def test_the_cursor_of_the_overview_stays_on_its_process(dashboard: Dashboard) -> None:
    press(dashboard, "enter", "down", "down")
    chosen = dashboard.selected_rows["overview"]
    fewer = [replace(each, processes=each.processes[1:]) for each in snapshots()]
    dashboard.feed = dashboard.time._feed = StillFeed(fewer)
    draw(dashboard)
    assert (dashboard.selected_rows["overview"], dashboard.list.cursor) == (chosen, 1)


def test_a_click_at_a_device_selects_who_holds_it(dashboard: Dashboard) -> None:
    press(dashboard, "enter")
    rows = [plain(line) for line in draw(dashboard).lines]
    row = next(number for number, line in enumerate(rows) if line.startswith("ND4"))
    assert dashboard.click(2, row)
    assert dashboard.list.cursor == 0  # its job, which holds all of them
    press(dashboard, "x")
    assert dashboard.click(2, next(n for n, line in enumerate(draw(dashboard).lines) if plain(line).startswith("ND4")))
    scene = dashboard.scene()
    assert scene is not None
    assert nodes(scene)[dashboard.list.cursor].key == "nd4"


def test_v_changes_between_compact_and_full_and_is_kept(dashboard: Dashboard) -> None:
    assert "System vCPU Usage" in text(dashboard)
    compact = press(dashboard, "v")
    assert "System vCPU Usage" not in compact
    assert "vCPU  system [" in compact
    assert dashboard.settings.is_compact
    assert "System vCPU Usage" in press(dashboard, "v")


def test_a_model_that_does_not_run_is_dimmed() -> None:
    dashboard = Dashboard(StillFeed(snapshots(scenario="stuck-core")), Settings(), UNICODE)
    press(dashboard, "x")
    line = next(line for line in draw(dashboard).lines if "train_step" in plain(line))
    assert {style for _, style in line} == {"dim"}
    assert "(loaded, not running)" in plain(line)
