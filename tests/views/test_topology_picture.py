from __future__ import annotations

from dataclasses import replace

import pytest

from neurontools.model import Snapshot
from neurontools.views.topology.picture import topology_picture
from tests.harness.snapshots import snapshot_of


def host(links: list[tuple[int, ...]], topology: str = "torus_2d") -> Snapshot:
    """A host with these links and no other fact of interest."""
    snapshot = snapshot_of("trn1.2xlarge")
    devices = tuple(replace(snapshot.devices[0], index=i, connected_to=to) for i, to in enumerate(links))
    return replace(snapshot, devices=devices, instance=replace(snapshot.instance, topology=topology))


def torus(rows: int, columns: int) -> Snapshot:
    def links(row: int, column: int) -> tuple[int, ...]:
        near = ((row - 1, column), (row, column - 1), (row + 1, column), (row, column + 1))
        return tuple(r % rows * columns + c % columns for r, c in near)

    return host([links(row, column) for row in range(rows) for column in range(columns)])


def test_torus_of_three_rows_and_five_columns() -> None:
    verticals = "        ".join
    up, bar, down, end = (f"      {verticals([mark] * 5)}      \n" for mark in "▲│▼*")
    assert topology_picture(torus(3, 5)) == (
        "Neuron Device Topology\n"
        + end
        + bar
        + down
        + "*––►[ 0 ]◄––►[ 1 ]◄––►[ 2 ]◄––►[ 3 ]◄––►[ 4 ]◄––*\n"
        + up
        + bar
        + down
        + "*––►[ 5 ]◄––►[ 6 ]◄––►[ 7 ]◄––►[ 8 ]◄––►[ 9 ]◄––*\n"
        + up
        + bar
        + down
        + "*––►[10 ]◄––►[11 ]◄––►[12 ]◄––►[13 ]◄––►[14 ]◄––*\n"
        + up
        + bar
        + end
        + "\nLegend:\n\n        *––► = Wrap-around link\n"
    )


@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (4, 4), (5, 3), (8, 4), (4, 16)])
def test_torus_of_any_shape(rows: int, columns: int) -> None:
    lines = topology_picture(torus(rows, columns)).split("\n")
    boxes = [line for line in lines if "[" in line]
    assert len(boxes) == rows
    assert all(line.count("[") == columns for line in boxes)
    picture = lines[1 : 1 + 4 * rows + 2]
    assert len({len(line) for line in picture}) == 1


def test_ring_in_an_order_of_its_own() -> None:
    # 0 - 2 - 1 - 3 - 0
    picture = topology_picture(host([(2, 3), (2, 3), (0, 1), (1, 0)], "ring"))
    assert picture.startswith("Neuron Device Topology\n\n  *––►[ 0 ]◄––►[ 2 ]◄––►[ 1 ]◄––►[ 3 ]◄––*\n\nLegend:")


def test_line_from_its_lower_end() -> None:
    # 2 - 0 - 1
    picture = topology_picture(host([(1, 2), (0,), (0,)], "line"))
    assert picture == "Neuron Device Topology\n\n  [ 1 ]◄––►[ 0 ]◄––►[ 2 ]\n"


def test_two_devices() -> None:
    assert topology_picture(host([(1,), (0,)], "line")) == "Neuron Device Topology\n\n  [ 0 ]◄––►[ 1 ]\n"


def test_switch_of_five() -> None:
    assert topology_picture(host([()] * 5, "switched")) == (
        "Neuron Device Topology\n\n"
        "  [ 0 ]  [ 1 ]  [ 2 ]  [ 3 ]  [ 4 ]\n"
        "    ▲      ▲      ▲      ▲      ▲\n"
        "    │      │      │      │      │\n"
        "    ▼      ▼      ▼      ▼      ▼\n"
        "  [          NeuronSwitch         ]\n"
    )


def test_devices_of_a_torus_host_that_lists_no_links_stand_alone() -> None:
    assert topology_picture(host([(), (), ()])) == "Neuron Device Topology\n\n  [ 0 ]\n  [ 1 ]\n  [ 2 ]\n"


def test_links_to_devices_that_a_container_does_not_see_are_listed() -> None:
    picture = topology_picture(host([(12, 3, 4, 1), (13, 0, 5, 2)]))
    assert picture == "Neuron Device Topology\n\n  [ 0 ] ◄––► 12, 3, 4, 1\n  [ 1 ] ◄––► 13, 0, 5, 2\n"


def test_a_gap_in_the_indices_is_no_known_shape() -> None:
    snapshot = snapshot_of("inf1.6xlarge")
    assert "[ 1 ] ◄––► 2, 0\n" in topology_picture(replace(snapshot, devices=snapshot.devices[1:]))


def test_inferred_links_are_said_to_be() -> None:
    snapshot = snapshot_of("inf1.6xlarge")
    inferred = replace(snapshot, instance=replace(snapshot.instance, inferred_fields=("topology",)))
    assert topology_picture(inferred).startswith("Neuron Device Topology (inferred)\n")
