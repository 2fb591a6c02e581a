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


def test_neighbours_and_distances_are_those_of_the_driver() -> None:
    assert CATALOG["trn1.32xlarge"].neighbours(0) == (12, 3, 4, 1)
    assert CATALOG["trn2.48xlarge"].neighbours(0) == (12, 1, 3, 4)
    assert CATALOG["trn2.48xlarge"].neighbours(13) == (12, 1, 9, 14)
    assert CATALOG["inf2.48xlarge"].neighbours(0) == (11, 1)
    assert CATALOG["inf1.6xlarge"].neighbours(1) == (2, 0)
    # From 0 to 5 on the torus two ways are equally short: over 4 and over 1. Trn1 lists 4 first, Trn2 1 first.
    assert CATALOG["trn1.32xlarge"].shortest_path(0, 5) == (0, 4, 5)
    assert CATALOG["trn2.48xlarge"].shortest_path(0, 5) == (0, 1, 5)
    assert CATALOG["trn1.32xlarge"].distances(0) == (0, 1, 2, 1, 1, 2, 3, 2, 2, 3, 4, 3, 1, 2, 3, 2)


def test_ways_between_devices_without_links_and_over_a_switch() -> None:
    topology = Topology(TopologyKind.LINE, ((1,), (0,), ()))
    assert topology.hops(0, 2) is None
    assert topology.shortest_path(0, 2) is None
    assert topology.distances(2) == (None, None, 0)
    topology = CATALOG["trn3e.24xlarge"]  # a switch is one hop though no neighbours are listed
    assert (topology.neighbours(0), topology.distances(1)) == ((), (1, 0, 1, 1))
    assert topology.shortest_path(0, 3) == (0, 3)


def test_links_that_are_impossible_or_known_at_one_end_only() -> None:
    for links in (((0,),), ((1,),), ((-1,), ()), ((1, 1), (0,))):
        with pytest.raises(ValueError, match="device 0"):
            Topology(TopologyKind.LINE, links)
    assert not Topology(TopologyKind.LINE, ((1,), ())).is_symmetric
    topology = CATALOG["trn1.32xlarge"]
    for device in (-1, 16):
        with pytest.raises(IndexError, match=rf"no device {device}: there are 16 devices"):
            topology.neighbours(device)
        with pytest.raises(IndexError):
            topology.hops(0, device)


def test_rings_of_a_torus() -> None:
    for topology in (CATALOG["trn1.32xlarge"], CATALOG["trn2u.48xlarge"]):
        rows = ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15))
        columns = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
        assert (topology.grid_shape(), topology.rings()) == ((4, 4), rows + columns)
    for height, width in ((3, 6), (5, 3)):
        topology = torus(height, width)
        assert (topology.grid_shape(), len(topology.rings())) == ((height, width), height + width)
        for members in topology.rings():
            assert all(b in topology.neighbours(a) for a, b in zip(members, members[1:] + members[:1], strict=True))


def test_rings_of_a_ring() -> None:
    assert CATALOG["inf2.48xlarge"].rings() == (tuple(range(12)),)
    assert Topology(TopologyKind.RING, ((2, 3), (3, 2), (0, 1), (1, 0))).rings() == ((0, 2, 1, 3),)


def test_other_shapes_have_neither_rings_nor_a_grid() -> None:
    line = Topology(TopologyKind.LINE, ((1,), (0, 2), (1,)))
    for topology in (line, switched(4), CATALOG["trn1.2xlarge"], Topology(TopologyKind.RING, ((1,), (0,)))):
        assert topology.rings() == ()
        assert topology.grid_shape() is None
    assert Topology(TopologyKind.TORUS_2D, ring(16).connected_to).grid_shape() is None


def test_the_declared_kind_is_the_shape_of_the_links() -> None:
    for topology in CATALOG.values():
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
    assert topology.compact_group(4, everything) == (0, 1, 2, 3)
    assert topology.compact_group(16, everything) == tuple(everything)
    assert topology.compact_group(3, [1, 2]) is None
    with pytest.raises(ValueError, match="-1 devices"):
        topology.compact_group(-1, everything)
    # 64 devices: too many groups to try them all. In a ring the closest are those in a row.
    assert ring(64).compact_group(8, range(64)) == tuple(range(8))
