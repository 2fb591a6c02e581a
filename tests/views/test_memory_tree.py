"""The summary and the details of memory: which rows there are, what they add up to, and how they are drawn."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from neurontools.model import DeviceMemory, HostMemory, LoadedModel, NeuronCore, Process, Snapshot, SourceKind, Subgraph
from neurontools.views.drawing.lines import TextPage, plain_text
from neurontools.views.drawing.render_context import RenderContext
from neurontools.views.memory_sections import MemoryNode, all_node_keys, memory_summary, memory_tree, visible_nodes
from tests.harness.snapshots import process_of, snapshot_of, with_device

TRAIN, SERVE = 7, 8
MODEL = LoadedModel(
    10001,
    "train.neff",
    "0" * 32,
    True,
    (Subgraph(0, 0, 0, DeviceMemory(constants_bytes=20, tensors_bytes=100), HostMemory(tensors_bytes=5)),),
)


def holding(pid: int, cores: tuple[int, ...], *models: LoadedModel, lnc: int = 1) -> Process:
    process = process_of(pid, "python", (cores[0] // 2,))
    return replace(process, tag=f"tag{pid}", core_indices=cores, models=models, logical_neuroncore_config=lnc)


def with_cores(snapshot: Snapshot, *changed: NeuronCore) -> Snapshot:
    by_index = {core.index: core for core in changed}
    return replace(snapshot, cores=tuple(by_index.get(core.index, core) for core in snapshot.cores))


def two_processes() -> Snapshot:
    """PID 7 with a model on core 0 of device 0, PID 8 without one on core 2 of device 1; the rest is free."""
    host = snapshot_of("trn1.32xlarge", [holding(TRAIN, (0,), MODEL), holding(SERVE, (2,))])
    used = DeviceMemory(constants_bytes=20, tensors_bytes=150, runtime_memory_bytes=8)
    return with_cores(
        host,
        replace(host.cores[0], owner_pid=TRAIN, memory=used),
        replace(host.cores[2], owner_pid=SERVE, memory=DeviceMemory(tensors_bytes=30, notifications_bytes=3)),
    )


def every_node(snapshot: Snapshot, pid: int | None = None) -> list[MemoryNode]:
    return visible_nodes(
        RenderContext.from_snapshot(snapshot, pid=pid, opened=all_node_keys(RenderContext.from_snapshot(snapshot)))
    )


def sizes(rows: list[MemoryNode]) -> dict[str, tuple[int | None, int | None]]:
    return {row.key: (row.device_bytes, row.host_bytes) for row in rows}


def test_closed_nodes_hide_what_is_in_them_and_keep_their_sums() -> None:
    host = two_processes()
    closed = visible_nodes(RenderContext.from_snapshot(host))
    assert [(row.key, row.is_open, row.has_children) for row in closed] == [
        (f"nd{device.index}", False, True) for device in host.devices
    ]
    assert [(row.device_bytes, row.host_bytes) for row in closed[:3]] == [(178, 5), (33, 0), (0, 0)]
    for opened, shown in (
        ({"nd0"}, [("nd0", True), ("nd0/nc0", False)]),
        ({"nd0", "nd0/nc0"}, [("nd0", True), ("nd0/nc0", True), ("nd0/nc0/m7.10001", False)]),
    ):
        rows = visible_nodes(RenderContext.from_snapshot(host, pid=TRAIN, opened=frozenset(opened)))
        assert [(row.key, row.is_open) for row in rows[:3]] == shown
    keys = all_node_keys(RenderContext.from_snapshot(host))
    assert keys == {row.key for row in every_node(host) if row.has_children}
    assert {"nd15", "nd15/nc31", "nd0/nc0/m7.10001"} <= keys


def test_a_tab_shows_the_devices_and_cores_of_its_process_alone() -> None:
    host = two_processes()
    assert [row.key for row in every_node(host, SERVE) if row.depth < 2] == ["nd1", "nd1/nc2"]
    assert sizes(every_node(host, SERVE))["nd1"] == (33, 0)
    assert len([row for row in every_node(host) if row.depth == 1]) == 32
    assert every_node(host, 4711) == []


def test_categories_of_the_driver_alone_are_shown_where_there_is_something_in_them() -> None:
    titles = [row.title for row in every_node(two_processes(), SERVE) if row.depth == 2]
    usual = ["Tensors", "Constants", "Model Code", "Runtime Memory", "Model Scratchpad"]
    assert titles == [*usual, "Notifications"]
    host = two_processes()
    full = replace(host.cores[2], memory=DeviceMemory(*[1] * len(fields(DeviceMemory))))
    titles = [row.title for row in every_node(with_cores(host, full), SERVE) if row.depth == 2]
    drivers = ["Collectives", "DMA Rings", "Driver Memory", "Nonshared Scratchpad", "Notifications", "Uncategorized"]
    assert titles == usual + drivers


def test_host_memory_from_the_driver_is_told_by_device_and_not_by_process() -> None:
    host = replace(two_processes(), source=SourceKind.SYSFS)
    host = with_device(host, 1, host_memory=HostMemory(dma_buffers_bytes=64))
    assert sizes(every_node(host))["nd1"] == (33, 64)
    assert sizes(every_node(host))["nd1/nc2"] == (33, None)
    assert sizes(every_node(host))["nd1/nc2/tensors_bytes"] == (30, None)
    assert sizes(every_node(host, SERVE))["nd1"] == (33, None)
    assert sizes(every_node(host))["nd0"] == (178, 5), "where models are known, it is that of the models"
    simulated = sizes(every_node(two_processes()))
    assert [simulated[key][1] for key in ("nd1", "nd1/nc2", "nd1/nc2/tensors_bytes")] == [0, 0, 0]


def test_a_category_that_is_unknown_stays_unknown() -> None:
    host = two_processes()
    memory = replace(host.cores[0].memory, constants_bytes=None, tensors_bytes=90)
    shown = sizes(every_node(with_cores(host, replace(host.cores[0], memory=memory)), TRAIN))
    assert shown["nd0/nc0/constants_bytes"] == (None, 0)
    assert shown["nd0/nc0/tensors_bytes"] == (0, 0), "a model that reports more than its core has takes all of it"


@pytest.mark.parametrize(
    ("own_lnc", "own_core", "host_lnc", "shown_at"),
    [(1, 5, 2, 2), (2, 3, 2, 3), (2, 3, 1, 6), (1, 5, 1, 5), (1, 5, 0, 5), (0, 3, 2, 3)],
)
def test_a_model_is_shown_on_the_core_it_is_on_whatever_the_lnc_of_its_process(
    own_lnc: int, own_core: int, host_lnc: int, shown_at: int
) -> None:
    model = replace(MODEL, subgraphs=(replace(MODEL.subgraphs[0], neuroncore_index=own_core),))
    held = max(1, own_lnc)  # whatever a recording holds
    physical = tuple(range(own_core * held, (own_core + 1) * held))
    host = snapshot_of("trn2.3xlarge", [holding(TRAIN, physical, model, lnc=own_lnc)])
    host = replace(host, instance=replace(host.instance, logical_neuroncore_config=host_lnc))
    assert [row.key for row in every_node(host) if row.model_id is not None] == [f"nd0/nc{shown_at}/m7.10001"]


def drawn(page: TextPage) -> list[str]:
    return [plain_text(line) for line in page.lines]


def test_the_summary_has_bars_if_there_is_room() -> None:
    context = RenderContext.from_snapshot(two_processes())
    title = "─ Memory Usage Summary "
    page = memory_summary(context, 80, 8)
    assert [[style for _, style in line] for line in page.lines[1:3]] == [
        ["strong", "track", "strong", "text"] * 2,
        ["text", "track", "text", "text", "text", "memory", "text", "text"],
    ]
    assert drawn(page) == [
        f"{title}─ ██ of the capacity, ━━ share of the total, x: details ─",
        "Host Used Memory Total   ·          0   Device Used Memory Total ·      211 B",
        "  Tensors                ─          0     Tensors                ━      180 B",
        "  Constants              ─          0     Constants              ╸       20 B",
        "  DMA Buffers            ─          0     Model Code             ─          0",
        "  App. Memory            ─          0     Runtime Memory         ╸        8 B",
        "                                          Model Scratchpad       ─          0",
        "                                          Other                  ╸        3 B",
    ]
    lines = [
        "Host Used Memory   Total 0  Tensors 0  Const 0  DMA 0  App 0",
        "Device Used Memory Total 211 B  Tensors 180 B  Const 20 B  Code 0  Runtime 8 B",
        "                   Scratch 0  Other 3 B",
    ]
    for width, height in ((80, 7), (79, 8)):
        assert drawn(memory_summary(context, width, height))[1:] == lines
    about = [drawn(memory_summary(context, width, 3))[0].removeprefix(title) for width in (72, 71)]
    assert about == [" system - of -, devices have 512 GB, x: details ─", f"{'─' * 35} x: details ─"]
    assert drawn(memory_summary(context, 60, 8))[1] == "Host Used Memory   Total 0  Tensors 0  Const 0  DMA 0  App 0"
    assert drawn(memory_summary(context, 59, 8)) == [
        f"{title}{'─' * 23} x: details ─",
        "Host Used Memory   Total 0",
        "Device Used Memory Total 211 B",
    ]


def test_the_tree_is_drawn_with_its_columns() -> None:
    host = two_processes()
    context = RenderContext.from_snapshot(
        host, pid=TRAIN, opened=all_node_keys(RenderContext.from_snapshot(host)), cursor=1
    )
    assert drawn(memory_tree(context, 72, 6)) == [
        "─ Memory Usage Details ────────   Model ID  Device Memory    Host Memory",
        "▾ ND 0                                              178 B            5 B",
        "  ▾ NC 0  tag7                                      178 B            5 B",
        "    ▾ train.neff                     10001          120 B            5 B",
        "        Tensors                                     100 B            5 B",
        "        Constants                                    20 B              0",
    ]
    assert drawn(memory_tree(context, 130, 2))[0].endswith("─   Model ID  Device Memory    Host Memory ─────────")
    narrow = RenderContext.from_snapshot(host, opened=frozenset({"nd0", "nd0/nc0"}))
    assert drawn(memory_tree(narrow, 30, 4))[3] == "    ▸ tra…     10001", "names keep ten cells"


def test_the_tree_is_scrolled_to_its_cursor_and_its_rows_can_be_clicked() -> None:
    host = two_processes()
    page = memory_tree(RenderContext.from_snapshot(host, cursor=9), 72, 5)
    assert [line.split()[:3] for line in drawn(page)[1:]] == [["▸", "ND", str(index)] for index in (6, 7, 8, 9)]
    assert (page.list_count, page.list_height, page.list_top) == (16, 4, 6)
    assert [target.argument for target in page.targets] == ["6", "7", "8", "9"]
    selected = [{style for _, style in line} for line in page.lines]
    assert selected[4] != selected[3]
    assert memory_tree(RenderContext.from_snapshot(host, cursor=99), 72, 5).list_top == 12, "there are 16"
    assert len(memory_tree(RenderContext.from_snapshot(host), 72, 1).lines) == 2, "there is room for one row always"


def test_a_device_stands_out_and_a_model_that_does_not_run_is_dim() -> None:
    host = two_processes()
    resting = holding(TRAIN, (0,), replace(MODEL, running=False))
    host = replace(host, processes=(resting, *host.processes[1:]))
    context = RenderContext.from_snapshot(
        host, pid=TRAIN, opened=all_node_keys(RenderContext.from_snapshot(host)), cursor=12
    )
    device, *lines = memory_tree(context, 90, 14).lines[1:13]
    assert [line[0][1] for line in lines] == ["text", *["dim"] * 6, *["text"] * 4]
    assert [style for _, style in device] == ["strong", "text", "text", "text"]
    assert {style for _, style in lines[1]} == {"dim"}
    assert "train.neff (loaded, not running)" in plain_text(lines[1])


def test_a_tree_without_rows_says_why() -> None:
    host = two_processes()
    unused, empty = (
        RenderContext.from_snapshot(host, pid=4711),
        RenderContext.from_snapshot(replace(host, cores=(), devices=())),
    )
    assert drawn(memory_tree(unused, 60, 5))[1:] == ["  no device is in use by this process"]
    assert drawn(memory_tree(empty, 60, 5))[1:] == ["  no devices"]
    assert memory_tree(empty, 60, 5).lines[1][0][1] == "dim"
