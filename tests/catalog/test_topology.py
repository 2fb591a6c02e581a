"""Graph questions over generated graphs and over every topology of the catalog."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools import catalog
from neurontools.catalog.topology import Topology, TopologyKind, kind_of


def torus(rows: int, columns: int) -> Topology:
    """A row-major torus with neighbours in the order north, west, south, east."""
    links = []
    for device in range(rows * columns):
        row, column = divmod(device, columns)
        steps = [(row - 1, column), (row, column - 1), (row + 1, column), (row, column + 1)]
        links.append(tuple(r % rows * columns + c % columns for r, c in steps))
    return Topology(TopologyKind.TORUS_2D, tuple(links))


def line(length: int) -> Topology:
    return Topology(
        TopologyKind.LINE,
        tuple(tuple(j for j in (i - 1, i + 1) if 0 <= j < length) for i in range(length)),
    )


def ring(length: int) -> Topology:
    return Topology(TopologyKind.RING, tuple(((i - 1) % length, (i + 1) % length) for i in range(length)))


def switched(count: int) -> Topology:
    return Topology(TopologyKind.SWITCHED, ((),) * count)


@st.composite
def graphs(draw: st.DrawFn) -> Topology:
    """Any symmetric graph, connected or not, its neighbour lists in any order. The kind is of no matter to paths."""
    count = draw(st.integers(min_value=1, max_value=9))
    pairs = list(combinations(range(count), 2))
    chosen = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    links = []
    for device in range(count):
        others = [b if a == device else a for a, b in sorted(chosen) if device in (a, b)]
        links.append(tuple(draw(st.permutations(others))))
    return Topology(TopologyKind.LINE, tuple(links))


CATALOG = {name: catalog.load(name).topology for name in catalog.names()}
TOPOLOGIES = graphs() | st.sampled_from([*CATALOG.values(), torus(3, 5), ring(7), switched(5)])


@given(TOPOLOGIES)
def test_hops_are_a_metric(topology: Topology) -> None:
    devices = range(topology.device_count)
    assert topology.is_symmetric
    for a in devices:
        assert topology.hops(a, a) == 0
        for b in devices:
            ab = topology.hops(a, b)
            assert ab == topology.hops(b, a)
            assert ab == topology.distances(a)[b]
            for c in devices:
                bc, ac = topology.hops(b, c), topology.hops(a, c)
                if ab is not None and bc is not None:
                    assert ac is not None
                    assert ac <= ab + bc


@given(TOPOLOGIES)
def test_shortest_paths_walk_along_links(topology: Topology) -> None:
    for a in range(topology.device_count):
        for b in range(topology.device_count):
            path = topology.shortest_path(a, b)
            hops = topology.hops(a, b)
            if path is None:
                assert hops is None
                continue
            assert (path[0], path[-1], len(path) - 1) == (a, b, hops)
            if topology.kind is not TopologyKind.SWITCHED:
                assert all(step in topology.neighbours(start) for start, step in pairwise(path))


def test_a_path_takes_the_neighbour_listed_first() -> None:
    # From 0 to 5 on the torus two ways are equally short: over 4 and over 1. Trn1 lists 4 first, Trn2 1 first.
    assert CATALOG["trn1.32xlarge"].shortest_path(0, 5) == (0, 4, 5)
    assert CATALOG["trn2.48xlarge"].shortest_path(0, 5) == (0, 1, 5)


def test_neighbours_keep_the_order_of_the_driver() -> None:
    assert CATALOG["trn1.32xlarge"].neighbours(0) == (12, 3, 4, 1)
    assert CATALOG["trn2.48xlarge"].neighbours(0) == (12, 1, 3, 4)
    assert CATALOG["trn2.48xlarge"].neighbours(13) == (12, 1, 9, 14)
    assert CATALOG["inf2.48xlarge"].neighbours(0) == (11, 1)
    assert CATALOG["inf1.6xlarge"].neighbours(1) == (2, 0)


def test_distances_on_the_4x4_torus() -> None:
    assert CATALOG["trn1.32xlarge"].distances(0) == (0, 1, 2, 1, 1, 2, 3, 2, 2, 3, 4, 3, 1, 2, 3, 2)


def test_unconnected_devices_have_no_way() -> None:
    topology = Topology(TopologyKind.LINE, ((1,), (0,), ()))
    assert topology.hops(0, 2) is None
    assert topology.shortest_path(0, 2) is None
    assert topology.distances(2) == (None, None, 0)


def test_a_switch_is_one_hop_though_no_neighbours_are_listed() -> None:
    topology = CATALOG["trn3e.24xlarge"]
    assert topology.neighbours(0) == ()
    assert topology.distances(1) == (1, 0, 1, 1)
    assert topology.shortest_path(0, 3) == (0, 3)


@pytest.mark.parametrize("device", [-1, 16])
def test_devices_that_do_not_exist_are_refused(device: int) -> None:
    topology = CATALOG["trn1.32xlarge"]
    with pytest.raises(IndexError, match=rf"no device {device}: there are 16 devices"):
        topology.neighbours(device)
    with pytest.raises(IndexError):
        topology.hops(0, device)


@pytest.mark.parametrize("links", [((0,),), ((1,),), ((-1,), ()), ((1, 1), (0,))])
def test_impossible_links_are_refused(links: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="device 0"):
        Topology(TopologyKind.LINE, links)


def test_asymmetric_links_are_told() -> None:
    assert not Topology(TopologyKind.LINE, ((1,), ())).is_symmetric


@pytest.mark.parametrize("name", ["trn1.32xlarge", "trn1n.32xlarge", "trn2.48xlarge", "trn2u.48xlarge"])
def test_rings_of_the_4x4_torus(name: str) -> None:
    topology = CATALOG[name]
    assert topology.grid_shape() == (4, 4)
    rows = ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15))
    columns = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
    assert topology.rings() == rows + columns


@given(st.integers(min_value=3, max_value=6), st.integers(min_value=3, max_value=6))
def test_rings_close(rows: int, columns: int) -> None:
    topology = torus(rows, columns)
    assert topology.grid_shape() == (rows, columns)
    assert len(topology.rings()) == rows + columns
    for members in topology.rings():
        assert all(b in topology.neighbours(a) for a, b in zip(members, members[1:] + members[:1], strict=True))


def test_the_ring_of_inf2() -> None:
    assert CATALOG["inf2.48xlarge"].rings() == (tuple(range(12)),)


def test_a_ring_numbered_out_of_order() -> None:
    assert Topology(TopologyKind.RING, ((2, 3), (3, 2), (0, 1), (1, 0))).rings() == ((0, 2, 1, 3),)


def test_other_shapes_have_neither_rings_nor_a_grid() -> None:
    for topology in (line(4), switched(4), CATALOG["trn1.2xlarge"], Topology(TopologyKind.RING, ((1,), (0,)))):
        assert topology.rings() == ()
        assert topology.grid_shape() is None
    assert Topology(TopologyKind.TORUS_2D, ring(16).connected_to).grid_shape() is None


@pytest.mark.parametrize("name", catalog.names())
def test_the_declared_kind_is_the_shape_of_the_links(name: str) -> None:
    topology = CATALOG[name]
    expected = None if topology.kind is TopologyKind.SWITCHED else topology.kind
    assert kind_of(topology.connected_to) == expected


@pytest.mark.parametrize(
    "links",
    [
        [],
        [[], []],  # the driver's answer for a count it has no table for
        [[1], [0], []],
        [[9], [10]],  # inside a container, where devices are renumbered and their neighbours aren't
        [[1], [2], [0]],  # each link known at one end only
        [[1, 2, 3], [0], [0], [0]],  # a star
        [[1, 2], [0, 2], [0, 1], [4, 5], [3, 5], [3, 4]],  # two rings
    ],
)
def test_links_of_no_known_shape(links: list[list[int]]) -> None:
    assert kind_of(links) is None


def total_hops(topology: Topology, group: tuple[int, ...]) -> int:
    hops = [topology.hops(a, b) for a, b in combinations(group, 2)]
    return sum(topology.device_count if n is None else n for n in hops)


@given(TOPOLOGIES, st.data())
def test_compact_groups_are_the_closest_there_are(topology: Topology, data: st.DataObject) -> None:
    free = data.draw(st.sets(st.integers(min_value=0, max_value=topology.device_count - 1), max_size=9))
    size = data.draw(st.integers(min_value=0, max_value=len(free)))
    group = topology.compact_group(size, free)
    best = min(combinations(sorted(free), size), key=lambda candidate: total_hops(topology, candidate))
    assert group == best


def test_compact_groups_of_a_torus() -> None:
    topology = CATALOG["trn2.48xlarge"]
    everything = range(16)
    assert topology.compact_group(0, everything) == ()
    assert topology.compact_group(1, everything) == (0,)
    assert topology.compact_group(4, everything) == (0, 1, 2, 3)
    assert topology.compact_group(4, [0, 5, 10, 15, 1, 4]) == (0, 1, 4, 5)
    assert topology.compact_group(16, everything) == tuple(everything)
    assert topology.compact_group(3, [1, 2]) is None


def test_a_group_of_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 devices"):
        ring(4).compact_group(-1, range(4))


def test_large_hosts_get_a_close_group() -> None:
    # 64 devices: too many groups to try them all. In a ring the closest are those in a row.
    assert ring(64).compact_group(8, range(64)) == tuple(range(8))
