"""The graph of NeuronLink links between the devices of an instance. No I/O.

On Trainium and Inferentia2, the driver doesn't detect links: it looks up the neighbours by the total number of devices.
A multiple of 16 devices is a 4x4 torus. 12 devices are a ring and 6 a line; both are Inf2. With any other count, for
example if one device failed to probe or is hidden, every neighbour list is empty. On Inferentia, the driver reads the
links from firmware. The driver's order of neighbours differs between Trn1 and Trn2, so the lists are never sorted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

# `compact_group` tries all possible groups if there are at most this many. 16 devices have at most 12,870 groups.
_EXACT_SEARCH_GROUPS = 20_000


class TopologyKind(StrEnum):
    """The shape of the NeuronLink graph of a host."""

    SINGLE = "single"
    LINE = "line"
    RING = "ring"
    TORUS_2D = "torus_2d"
    SWITCHED = "switched"


@dataclass(frozen=True, slots=True)
class Topology:
    """The links of one host: `connected_to[i]` lists the neighbours of device i, in the driver's order.

    In a switched fabric, the driver lists no neighbours, and every device reaches every other device in one hop.
    Raises ValueError for a neighbour that is out of range, listed twice, or the device itself.
    """

    kind: TopologyKind
    connected_to: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        for device, neighbours in enumerate(self.connected_to):
            for neighbour in neighbours:
                if not 0 <= neighbour < len(self.connected_to) or neighbour == device:
                    msg = (
                        f"device {device} can't be connected to {neighbour}: there are {len(self.connected_to)} devices"
                    )
                    raise ValueError(msg)
            if len(set(neighbours)) != len(neighbours):
                msg = f"device {device} lists a neighbour twice: {list(neighbours)}"
                raise ValueError(msg)

    @property
    def device_count(self) -> int:
        """Returns the number of devices, linked or not."""
        return len(self.connected_to)

    @property
    def is_symmetric(self) -> bool:
        """Whether each link is listed by both of its devices."""
        return _is_mutual(self.connected_to)

    def neighbours(self, device: int) -> tuple[int, ...]:
        """Returns the neighbours of a device in the driver's order. Raises IndexError if the device doesn't exist."""
        return self.connected_to[self._checked(device)]

    def distances(self, device: int) -> tuple[int | None, ...]:
        """Returns the hops from `device` to each device, by index; None for an unreachable device."""
        return _distance_table(self)[self._checked(device)]

    def hops(self, start: int, end: int) -> int | None:
        """Returns the number of links on a shortest path between two devices; None without a path."""
        return self.distances(start)[self._checked(end)]

    def shortest_path(self, start: int, end: int) -> tuple[int, ...] | None:
        """Returns the devices along a shortest path, both ends included, or None if there is no path.

        Among equal paths, prefers the neighbours that the driver lists first.
        """
        distance = self.hops(start, end)
        if distance is None:
            return None
        # Breadth-first search in the driver's order keeps the first path to each device.
        came_from: dict[int, int] = {start: start}
        queue = deque([start])
        while end not in came_from:
            device = queue.popleft()
            for neighbour in _reached_from(self, device):
                if neighbour not in came_from:
                    came_from[neighbour] = device
                    queue.append(neighbour)
        path = [end]
        while path[-1] != start:
            path.append(came_from[path[-1]])
        return tuple(reversed(path))

    def grid_shape(self) -> tuple[int, int] | None:
        """Returns (rows, columns) of a torus with row-major device numbers, or None for any other topology."""
        return _torus_shape(self.connected_to) if self.kind is TopologyKind.TORUS_2D else None

    def rings(self) -> tuple[tuple[int, ...], ...]:
        """Returns the rings of linked devices. Within a ring, the last device is linked to the first.

        A torus has one ring per row, then one ring per column. The ring topology has one ring, from device 0. Other
        topologies have none.
        """
        shape = self.grid_shape()
        if shape is not None:
            row_count, column_count = shape
            rows = [tuple(range(row * column_count, (row + 1) * column_count)) for row in range(row_count)]
            return (*rows, *zip(*rows, strict=True))
        if self.kind is TopologyKind.RING and kind_of(self.connected_to) is TopologyKind.RING:
            return (self._walk_ring(),)
        return ()

    def compact_group(self, group_size: int, free: Collection[int]) -> tuple[int, ...] | None:
        """Returns the `group_size` devices of `free` closest to each other, ascending. None if too few are free.

        The closest group has the least sum of hops over all pairs and, among equal sums, the lowest indices. A pair
        without a path counts as `device_count` hops. The search is exact for up to 16 free devices. For more devices,
        it may return a group that is only nearly the closest.
        """
        if group_size < 0:
            msg = f"a group can't have {group_size} devices"
            raise ValueError(msg)
        candidates = sorted({self._checked(device) for device in free})
        if group_size > len(candidates):
            return None
        far = self.device_count
        costs = [[far if hops is None else hops for hops in row] for row in _distance_table(self)]
        from math import comb  # imported here, because drawing a topology doesn't need math

        if comb(len(candidates), group_size) <= _EXACT_SEARCH_GROUPS:
            return _closest_group(group_size, candidates, costs)
        return _grown_group(group_size, candidates, costs)

    def _walk_ring(self) -> tuple[int, ...]:
        """Returns all devices along the ring, from device 0 towards its lower-numbered neighbour."""
        walk = [0]
        step = min(self.connected_to[0])
        while step != 0:
            walk.append(step)
            step = next(device for device in self.connected_to[step] if device != walk[-2])
        return tuple(walk)

    def _checked(self, device: int) -> int:
        """Returns the device index. Raises IndexError if it is out of range or negative."""
        if not 0 <= device < self.device_count:
            msg = f"no device {device}: there are {self.device_count} devices"
            raise IndexError(msg)
        return device


def kind_of(connected_to: Sequence[Collection[int]]) -> TopologyKind | None:
    """Returns the shape of the links that a host reports. None for an unknown shape, such as devices without links.

    Also returns None if a link is listed by only one of its devices, or if a listed device does not exist, as in a
    container. Never returns SWITCHED, because a host with a switched fabric reports no links.
    """
    degrees = [len(links) for links in connected_to]
    if degrees == [0]:
        return TopologyKind.SINGLE
    if not (_is_mutual(connected_to) and _is_one_piece(connected_to)):
        return None
    if sorted(degrees) == [1, 1] + [2] * (len(degrees) - 2):
        return TopologyKind.LINE
    if set(degrees) == {2}:
        return TopologyKind.RING
    return TopologyKind.TORUS_2D if _torus_shape(connected_to) else None


def _is_mutual(connected_to: Sequence[Collection[int]]) -> bool:
    """Returns whether both devices of every link exist and list the link."""
    count = len(connected_to)
    return all(0 <= b < count and a in connected_to[b] for a, links in enumerate(connected_to) for b in links)


def _is_one_piece(connected_to: Sequence[Collection[int]]) -> bool:
    """Returns whether a path connects device 0 to every other device."""
    visited = {0} if connected_to else set()
    pending = list(visited)
    while pending:
        fresh = set(connected_to[pending.pop()]) - visited
        visited |= fresh
        pending.extend(fresh)
    return len(visited) == len(connected_to)


def _torus_shape(connected_to: Sequence[Collection[int]]) -> tuple[int, int] | None:
    """Returns (rows, columns) of the row-major torus with exactly these links. None if there is no such torus.

    A torus has at least 3 rows and 3 columns. If several shapes fit, returns the one closest to a square.
    """
    count = len(connected_to)
    for row_count in range(int(count**0.5), 2, -1):
        if count % row_count:
            continue
        for rows, columns in ((row_count, count // row_count), (count // row_count, row_count)):
            if all(set(links) == _torus_neighbours(i, rows, columns) for i, links in enumerate(connected_to)):
                return rows, columns
    return None


def _torus_neighbours(device: int, rows: int, columns: int) -> set[int]:
    row, column = divmod(device, columns)
    above, below = (row - 1) % rows, (row + 1) % rows
    left, right = (column - 1) % columns, (column + 1) % columns
    return {above * columns + column, below * columns + column, row * columns + left, row * columns + right}


def _reached_from(topology: Topology, device: int) -> tuple[int, ...]:
    """Returns the devices one hop away: the neighbours, or in a switched fabric all other devices."""
    if topology.kind is TopologyKind.SWITCHED:
        return tuple(other for other in range(topology.device_count) if other != device)
    return topology.connected_to[device]


@lru_cache(maxsize=64)
def _distance_table(topology: Topology) -> tuple[tuple[int | None, ...], ...]:
    """Returns the hops between all pairs of devices. Runs a breadth-first search from each device."""
    table = []
    for start in range(topology.device_count):
        distance: list[int | None] = [None] * topology.device_count
        level, reached = 0, [start]
        distance[start] = 0
        while reached:
            level += 1
            following = []
            for device in reached:
                for neighbour in _reached_from(topology, device):
                    if distance[neighbour] is None:
                        distance[neighbour] = level
                        following.append(neighbour)
            reached = following
        table.append(tuple(distance))
    return tuple(table)


def _closest_group(group_size: int, candidates: list[int], costs: list[list[int]]) -> tuple[int, ...]:
    """Returns the group with the least sum of hops, by branch and bound in index order."""
    from math import comb, inf

    pair_count = comb(group_size, 2)
    best: tuple[int, ...] = ()
    best_cost: float = inf

    def extend(group: tuple[int, ...], cost: int, first: int) -> None:
        nonlocal best, best_cost
        # Lower bound for the sum of hops: every remaining pair costs at least one hop.
        if cost + pair_count - comb(len(group), 2) >= best_cost:
            return
        if len(group) == group_size:
            best, best_cost = group, cost
            return
        for position in range(first, len(candidates) - (group_size - len(group)) + 1):
            device = candidates[position]
            extend((*group, device), cost + sum(costs[member][device] for member in group), position + 1)

    extend((), 0, 0)
    return best


def _grown_group(group_size: int, candidates: list[int], costs: list[list[int]]) -> tuple[int, ...]:
    """Returns a group with few hops, not always the fewest.

    Starts a group at each device, repeatedly adds the nearest device, and returns the best of these groups.
    """
    groups = []
    for start in candidates:
        group, total = [start], 0
        added = {device: costs[start][device] for device in candidates if device != start}
        while len(group) < group_size:
            nearest = min(added, key=lambda device: (added[device], device))
            total += added.pop(nearest)
            group.append(nearest)
            for device in added:
                added[device] += costs[nearest][device]
        groups.append((total, tuple(sorted(group))))
    return min(groups)[1]
