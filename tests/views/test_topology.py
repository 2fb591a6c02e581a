"""The topology of a host and the UltraServer around it: as a picture in neuron-ls -t, and as a page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neurontools import catalog
from neurontools.catalog.facts import ultraserver_node
from neurontools.model import Snapshot, UltraServerNode
from neurontools.views.topology_picture import topology_picture
from tests.harness.snapshots import host_with_links, snapshot_of

TITLE = "Neuron Device Topology"


def torus(rows: int, columns: int) -> Snapshot:
    def links(row: int, column: int) -> tuple[int, ...]:
        near = ((row - 1, column), (row, column - 1), (row + 1, column), (row, column + 1))
        return tuple(r % rows * columns + c % columns for r, c in near)

    return host_with_links([links(row, column) for row in range(rows) for column in range(columns)])


def test_torus_of_three_rows_and_five_columns() -> None:
    verticals = "        ".join
    up, bar, down, end = (f"      {verticals([mark] * 5)}      \n" for mark in "▲│▼*")
    rows = (f"*––►{'◄––►'.join(f'[{5 * row + column:>2} ]' for column in range(5))}◄––*\n" for row in range(3))
    assert topology_picture(torus(3, 5)) == (
        f"{TITLE}\n{end}{bar}{down}{(up + bar + down).join(rows)}{up}{bar}{end}"
        "\nLegend:\n\n        *––► = Wrap-around link\n"
    )


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (4, 4), (5, 3), (8, 4), (4, 16)])
def test_torus_of_any_shape(rows: int, columns: int) -> None:
    lines = topology_picture(torus(rows, columns)).split("\n")
    boxes = [line for line in lines if "[" in line]
    assert len(boxes) == rows
    assert all(line.count("[") == columns for line in boxes)
    picture = lines[1 : 1 + 4 * rows + 2]
    assert len({len(line) for line in picture}) == 1


@pytest.mark.parametrize(
    ("links", "topology", "picture"),
    [
        # 0 - 2 - 1 - 3 - 0
        (
            [(2, 3), (2, 3), (0, 1), (1, 0)],
            "ring",
            "  *––►[ 0 ]◄––►[ 2 ]◄––►[ 1 ]◄––►[ 3 ]◄––*\n\nLegend:\n\n        *––► = Wrap-around link\n",
        ),
        # 2 - 0 - 1, from its lower end
        ([(1, 2), (0,), (0,)], "line", "  [ 1 ]◄––►[ 0 ]◄––►[ 2 ]\n"),
        ([(1,), (0,)], "line", "  [ 0 ]◄––►[ 1 ]\n"),
        ([()], "single", "  [ 0 ]\n"),
        (
            [()] * 5,
            "switched",
            (
                "  [ 0 ]  [ 1 ]  [ 2 ]  [ 3 ]  [ 4 ]\n"
                "    ▲      ▲      ▲      ▲      ▲\n"
                "    │      │      │      │      │\n"
                "    ▼      ▼      ▼      ▼      ▼\n"
                "  [          NeuronSwitch         ]\n"
            ),
        ),
        ([(), (), ()], "torus_2d", "  [ 0 ]\n  [ 1 ]\n  [ 2 ]\n"),
        # links to devices that a container does not see
        ([(12, 3, 4, 1), (13, 0, 5, 2)], "torus_2d", "  [ 0 ] ◄––► 12, 3, 4, 1\n  [ 1 ] ◄––► 13, 0, 5, 2\n"),
    ],
)
def test_other_shapes(links: list[tuple[int, ...]], topology: str, picture: str) -> None:
    assert topology_picture(host_with_links(links, topology)) == f"{TITLE}\n\n{picture}"


def test_a_gap_in_the_indices_is_no_known_shape_and_inferred_links_are_said_to_be() -> None:
    snapshot = snapshot_of("inf1.6xlarge")
    assert "[ 1 ] ◄––► 2, 0\n" in topology_picture(replace(snapshot, devices=snapshot.devices[1:]))
    inferred = replace(snapshot, instance=replace(snapshot.instance, inferred_fields=("topology",)))
    assert topology_picture(inferred).startswith(f"{TITLE} (inferred)\n")


def node_host(instance_type: str, index: int, name: str = "us-1") -> Snapshot:
    snapshot = snapshot_of(instance_type)
    node = ultraserver_node(catalog.load(instance_type).ultraserver, index)
    return replace(snapshot, instance=replace(snapshot.instance, ultraserver_id=name, ultraserver_node=node))


def test_a_ring_of_nodes_with_this_one_marked() -> None:
    below = topology_picture(node_host("trn2u.48xlarge", 1)).split("\n\n")[1:]
    assert below[0] == "UltraServer us-1 (Trn2 UltraServer): this host is node 1 of 4"
    assert below[1] == "*––►[node 0 ]◄––►[node 1 here ]◄––►[node 2 ]◄––►[node 3 ]◄––*"
    assert below[2] == (
        "Each device is linked to the devices of the same index on the previous and next node (inferred), "
        "256 GB/s a device.\nAll nodes together: 64 devices, 256 NeuronCores."
    )
    assert below[3:] == ["Legend:", "        *––► = Wrap-around link\n"]
    assert "512 NeuronCores" in topology_picture(node_host("trn2u.48xlarge", 1), 1)
    assert "UltraServer" not in topology_picture(snapshot_of("trn2u.48xlarge")), "a host in none"


def test_a_switch_joins_more_nodes_than_a_row_has_room_for() -> None:
    text = topology_picture(node_host("trn3e.24xlarge", 20))
    assert "(Trn3 Gen2 UltraServer (inferred)): this host is node 20 of 36 (inferred)" in text
    assert text.count("[node ") == 36
    assert text.count(" here ]") == 1
    assert max(map(len, text.splitlines())) < 120
    assert "All nodes together: 144 devices, 576 NeuronCores (inferred)." in text


@pytest.mark.parametrize("index", [None, 0])
def test_what_is_not_known_is_not_drawn(index: int | None) -> None:
    snapshot = snapshot_of("trn2u.48xlarge")
    bare = replace(snapshot.instance, ultraserver_id="\x1b[2Jus", ultraserver_node=UltraServerNode(index, None))
    lines = topology_picture(replace(snapshot, instance=bare)).splitlines()
    assert lines[lines.index("Legend:") - 2] == (
        f"UltraServer \\x1b[2Jus: this host is node {'-' if index is None else 0}"
    )
