"""The picture of `neuron-ls --topology`: how the devices are linked by NeuronLink."""

from __future__ import annotations

from collections.abc import Sequence

from neurontools.catalog.topology import Topology, TopologyKind, kind_of
from neurontools.model import Device, Snapshot
from neurontools.views.topology.nodes import nodes_picture

_TITLE = "Neuron Device Topology"
_LINK = "◄––►"
_WRAP_LEFT = "*––►"
_WRAP_RIGHT = "◄––*"
_LEGEND = f"\nLegend:\n\n        {_WRAP_LEFT} = Wrap-around link\n"


def topology_picture(snapshot: Snapshot, lnc: int | None = None) -> str:
    """The picture under its title, every line ended by a newline; drawn from the links, so right for any of the shapes.

    Below it the nodes of the UltraServer, where the host is one of them, with their cores under this LNC (the host's).

    Links that have none of the shapes, such as those of a container that sees only some devices, are listed.
    """
    devices = snapshot.devices
    lines = _picture(snapshot.instance.topology, devices)
    if lines is None:
        lines = ["", *_listed(devices)]
    wraps = any(_WRAP_LEFT in line for line in lines)
    inferred = "topology" in snapshot.instance.inferred_fields or any(
        "connected_to" in device.inferred_fields for device in devices
    )
    title = f"{_TITLE} (inferred)" if inferred else _TITLE
    nodes = nodes_picture(snapshot.instance, lnc or snapshot.instance.logical_neuroncore_config)
    wraps = wraps or any(_WRAP_LEFT in line for line in nodes)
    return "\n".join([title, *lines, *nodes]) + "\n" + (_LEGEND if wraps else "")


def _picture(instance_topology: str, devices: Sequence[Device]) -> list[str] | None:
    """The lines of a known shape; None for any other."""
    links = tuple(device.connected_to for device in devices)
    if any(device.index != position for position, device in enumerate(devices)) or not _is_sound(links):
        return None
    if instance_topology == TopologyKind.SWITCHED and not any(links) and len(links) > 1:
        return ["", *_switched(len(links))]
    kind = kind_of(links)
    if kind is None:
        return None
    topology = Topology(kind, links)
    shape = topology.grid_shape()
    if shape is not None:
        return _torus(*shape)
    if kind is TopologyKind.RING:
        return ["", "  " + _row(topology.rings()[0], wraps=True)]
    return ["", "  " + _row(_walk_line(links), wraps=False)]


def _is_sound(links: Sequence[Sequence[int]]) -> bool:
    """Whether every link leads to another device of the host and is listed at both its ends."""
    return all(
        0 <= other < len(links)
        and other != device
        and device in links[other]
        and len(set(neighbours)) == len(neighbours)
        for device, neighbours in enumerate(links)
        for other in neighbours
    )


def _walk_line(links: Sequence[Sequence[int]]) -> list[int]:
    """All devices of a line, from the end with the lower index."""
    walk = [next(device for device, neighbours in enumerate(links) if len(neighbours) < 2)]
    while len(walk) < len(links):
        walk += [device for device in links[walk[-1]] if device not in walk[-2:]]
    return walk


def _box(device: int) -> str:
    return f"[{device:>2} ]"


def _row(devices: Sequence[int], *, wraps: bool) -> str:
    row = _LINK.join(map(_box, devices))
    return f"{_WRAP_LEFT}{row}{_WRAP_RIGHT}" if wraps else row


def _torus(rows: int, columns: int) -> list[str]:
    """Row by row; the lines between are as long as the rows, as in the original."""
    gap = " " * len(_LINK)

    def under_boxes(mark: str) -> str:
        return gap + gap.join([mark.center(len(_box(0)))] * columns) + gap

    end, up, bar, down = map(under_boxes, "*▲│▼")
    lines = [end, bar, down]
    for row in range(rows):
        if row:
            lines += [up, bar, down]
        lines.append(_row(range(row * columns, (row + 1) * columns), wraps=True))
    return [*lines, up, bar, end]


def _switched(count: int) -> list[str]:
    """All devices in one row, on the switch that links each with each."""
    boxes = "  ".join(map(_box, range(count)))
    marks = ("  ".join([mark.center(len(_box(0)))] * count) for mark in "▲│▼")
    return [f"  {line}".rstrip() for line in (boxes, *marks, f"[{'NeuronSwitch'.center(len(boxes) - 2)}]")]


def _listed(devices: Sequence[Device]) -> list[str]:
    return [
        f"  {_box(device.index)}"
        + (f" {_LINK} {', '.join(map(str, device.connected_to))}" if device.connected_to else "")
        for device in devices
    ]
