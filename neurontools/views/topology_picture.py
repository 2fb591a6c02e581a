"""Text diagrams of NeuronLink connections between devices, and between the nodes of an UltraServer."""

from __future__ import annotations

from collections.abc import Sequence

from neurontools.catalog.topology import Topology, TopologyKind, kind_of
from neurontools.model import Device, Instance, Snapshot, UltraServerNode
from neurontools.util.terminal import escape_controls
from neurontools.util.units import UNKNOWN

_TITLE = "Neuron Device Topology"
_LINK = "◄––►"
_WRAP_LEFT = "*––►"
_WRAP_RIGHT = "◄––*"
_LEGEND = f"\nLegend:\n\n        {_WRAP_LEFT} = Wrap-around link\n"
_NODES_IN_A_ROW = 9
_BYTES_A_GIGABYTE = 1_000_000_000


def topology_picture(snapshot: Snapshot, lnc: int | None = None) -> str:
    """Returns the NeuronLink diagram of a host with its title, then the nodes of its UltraServer.

    Derives the shape from the links. Lists the links if the shape is unknown, for example in a container that sees only
    some devices. Counts the cores of the UltraServer under `lnc` (default: the host's). Every line ends in a newline.
    """
    devices = snapshot.devices
    lines = _shape_lines(snapshot.instance.topology, devices)
    if lines is None:
        lines = ["", *_link_list(devices)]
    inferred = "topology" in snapshot.instance.inferred_fields or any(
        "connected_to" in device.inferred_fields for device in devices
    )
    title = f"{_TITLE} (inferred)" if inferred else _TITLE
    nodes = nodes_picture(snapshot.instance, lnc or snapshot.instance.logical_neuroncore_config)
    text = "\n".join([title, *lines, *nodes]) + "\n"
    return text + _LEGEND if _WRAP_LEFT in text else text


def _shape_lines(instance_topology: str, devices: Sequence[Device]) -> list[str] | None:
    """Returns the diagram of a torus, ring, line or switched topology; None if the shape is none of these."""
    links = tuple(device.connected_to for device in devices)
    if any(device.index != position for position, device in enumerate(devices)) or not _are_links_symmetric(links):
        return None
    if instance_topology == TopologyKind.SWITCHED and not any(links) and len(links) > 1:
        return ["", *_switched_lines(len(links))]
    kind = kind_of(links)
    if kind is None:
        return None
    topology = Topology(kind, links)
    shape = topology.grid_shape()
    if shape is not None:
        return _torus_lines(*shape)
    if kind is TopologyKind.RING:
        return ["", "  " + _device_row(topology.rings()[0], wraps=True)]
    return ["", "  " + _device_row(_walk_line(links), wraps=False)]


def _are_links_symmetric(links: Sequence[Sequence[int]]) -> bool:
    """Returns whether every link leads to another existing device, and both devices list the link once."""
    return all(
        0 <= other < len(links)
        and other != device
        and device in links[other]
        and len(set(neighbours)) == len(neighbours)
        for device, neighbours in enumerate(links)
        for other in neighbours
    )


def _walk_line(links: Sequence[Sequence[int]]) -> list[int]:
    """Returns the devices of a line topology from end to end, starting at the end with the lower index."""
    walk = [next(device for device, neighbours in enumerate(links) if len(neighbours) < 2)]
    while len(walk) < len(links):
        walk += [device for device in links[walk[-1]] if device not in walk[-2:]]
    return walk


def _device_box(device: int) -> str:
    return f"[{device:>2} ]"


def _device_row(devices: Sequence[int], *, wraps: bool) -> str:
    row = _LINK.join(map(_device_box, devices))
    return f"{_WRAP_LEFT}{row}{_WRAP_RIGHT}" if wraps else row


def _torus_lines(rows: int, columns: int) -> list[str]:
    """Draws a 2D torus row by row. All lines have the same length, as in AWS's neuron-ls."""
    gap = " " * len(_LINK)

    def under_boxes(mark: str) -> str:
        return gap + gap.join([mark.center(len(_device_box(0)))] * columns) + gap

    end, up, bar, down = map(under_boxes, "*▲│▼")
    lines = [end, bar, down]
    for row in range(rows):
        if row:
            lines += [up, bar, down]
        lines.append(_device_row(range(row * columns, (row + 1) * columns), wraps=True))
    return [*lines, up, bar, end]


def _switched_lines(count: int) -> list[str]:
    """Draws a switched topology: all devices in one row, above the switch that connects them."""
    boxes = "  ".join(map(_device_box, range(count)))
    marks = ("  ".join([mark.center(len(_device_box(0)))] * count) for mark in "▲│▼")
    return [f"  {line}".rstrip() for line in (boxes, *marks, f"[{'NeuronSwitch'.center(len(boxes) - 2)}]")]


def _link_list(devices: Sequence[Device]) -> list[str]:
    return [
        f"  {_device_box(device.index)}"
        + (f" {_LINK} {', '.join(map(str, device.connected_to))}" if device.connected_to else "")
        for device in devices
    ]


def nodes_picture(instance: Instance, lnc: int) -> list[str]:
    """Returns the diagram of an UltraServer's nodes with an explanation; [] if the host is in no UltraServer.

    The number of NeuronCores in the text assumes that all nodes have the LNC `lnc`.
    """
    node = instance.ultraserver_node
    if node is None:
        return []
    lines = ["", ultraserver_text(instance)]
    if node.node_count is None:
        return lines
    nodes = [f"[node {index}{' here' if index == node.index else ''} ]" for index in range(node.node_count)]
    boxes = [nodes[first : first + _NODES_IN_A_ROW] for first in range(0, node.node_count, _NODES_IN_A_ROW)]
    if node.links == "ring":
        lines += ["", *(f"{_WRAP_LEFT}{_LINK.join(row)}{_WRAP_RIGHT}" for row in boxes)]
    elif node.links == "switched":
        width = max(len("  ".join(row)) for row in boxes)
        lines += ["", *("  " + "  ".join(row) for row in boxes), f"  [{'NeuronSwitch'.center(width - 2)}]"]
    meaning = node_links_text(node)
    if meaning:
        lines += ["", f"{meaning[:1].upper()}{meaning[1:]}."]
    devices = node.node_count * instance.device_count
    cores = devices * instance.physical_cores_per_device // lnc
    total = _mark_inferred(node, "node_count", f"{devices} devices, {cores} NeuronCores")
    return [*lines, f"All nodes together: {total}."]


def ultraserver_text(instance: Instance) -> str:
    """Returns the place of the host, such as `UltraServer us-1 (Trn2 UltraServer): this host is node 1 of 4`.

    Marks inferred values. Returns "" if the host is in no UltraServer.
    """
    node = instance.ultraserver_node
    if node is None:
        return ""
    named = UNKNOWN if instance.ultraserver_id is None else escape_controls(instance.ultraserver_id)
    kind = f" ({_mark_inferred(node, 'name', escape_controls(node.name))})" if node.name else ""
    index = UNKNOWN if node.index is None else str(node.index)
    count = "" if node.node_count is None else f" of {_mark_inferred(node, 'node_count', str(node.node_count))}"
    return f"UltraServer {named}{kind}: this host is node {index}{count}"


def node_links_text(node: UltraServerNode) -> str:
    """Returns a sentence on what the links between UltraServer nodes connect, and their rate; "" if unknown."""
    if node.links == "ring":
        text = "each device is linked to the devices of the same index on the previous and next node"
    elif node.links == "switched":
        text = "a device reaches every device of every node through the switch"
    else:
        return ""
    rate = node.link_bytes_per_second_per_device
    speed = "" if rate is None else f", {rate / _BYTES_A_GIGABYTE:g} GB/s a device"
    return _mark_inferred(node, "links", text) + speed


def device_links_text(node: UltraServerNode, device_index: int) -> str:
    """Returns the devices of other UltraServer nodes to which a device is linked, as text; "" if unknown."""
    if node.links == "switched":
        return _mark_inferred(node, "links", "all devices of the other nodes, through the switch")
    if node.links != "ring" or node.index is None or not node.node_count:
        return ""
    nodes = sorted({(node.index - 1) % node.node_count, (node.index + 1) % node.node_count} - {node.index})
    if not nodes:
        return ""
    text = f"ND {device_index} of node{'s' * (len(nodes) > 1)} {' and '.join(map(str, nodes))}"
    return _mark_inferred(node, "links", text)


def _mark_inferred(node: UltraServerNode, field: str, text: str) -> str:
    return f"{text} (inferred)" if field in node.inferred_fields else text
