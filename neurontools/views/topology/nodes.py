"""The UltraServer around a host: its nodes, which of them this is, and where a device's links to other nodes lead."""

from __future__ import annotations

from neurontools.model import Instance, UltraServerNode
from neurontools.util.terminal import escape_controls
from neurontools.util.units import UNKNOWN

_NODES_IN_A_ROW = 9
_LINK, _WRAP_LEFT, _WRAP_RIGHT = "◄––►", "*––►", "◄––*"
_BYTES_A_GIGABYTE = 1_000_000_000


def nodes_picture(instance: Instance, lnc: int) -> list[str]:
    """The nodes as they are joined, this one marked, and the meaning of it; nothing for a host that is none.

    NeuronCores are counted under this LNC, as if all nodes had it.
    """
    node = instance.ultraserver_node
    if node is None:
        return []
    lines = ["", place_text(instance)]
    if node.node_count is None:
        return lines
    rows = range(0, node.node_count, _NODES_IN_A_ROW)
    boxes = [_boxes(node, first, min(first + _NODES_IN_A_ROW, node.node_count)) for first in rows]
    if node.links == "ring":
        lines += ["", *(f"{_WRAP_LEFT}{_LINK.join(row)}{_WRAP_RIGHT}" for row in boxes)]
    elif node.links == "switched":
        width = max(len("  ".join(row)) for row in boxes)
        lines += ["", *("  " + "  ".join(row) for row in boxes), f"  [{'NeuronSwitch'.center(width - 2)}]"]
    meaning = links_text(node)
    if meaning:
        lines += ["", f"{meaning[:1].upper()}{meaning[1:]}."]
    devices = node.node_count * instance.device_count
    cores = devices * instance.physical_cores_per_device // lnc
    return [*lines, f"All nodes together: {_marked(node, 'node_count', f'{devices} devices, {cores} NeuronCores')}."]


def place_text(instance: Instance) -> str:
    """`UltraServer us-1 (Trn2 UltraServer): this host is node 1 of 4`; what was only concluded is marked."""
    node = instance.ultraserver_node
    if node is None:
        return ""
    named = UNKNOWN if instance.ultraserver_id is None else escape_controls(instance.ultraserver_id)
    kind = f" ({_marked(node, 'name', escape_controls(node.name))})" if node.name else ""
    index = UNKNOWN if node.index is None else str(node.index)
    count = "" if node.node_count is None else f" of {_marked(node, 'node_count', str(node.node_count))}"
    return f"UltraServer {named}{kind}: this host is node {index}{count}"


def links_text(node: UltraServerNode) -> str:
    """What the links between the nodes join, and their rate; nothing where that is not known."""
    if node.links == "ring":
        text = "each device is linked to those of the same index on the node before and the one after"
    elif node.links == "switched":
        text = "a device reaches every device of every node through the switch"
    else:
        return ""
    rate = node.link_bytes_per_second_per_device
    speed = "" if rate is None else f", {rate / _BYTES_A_GIGABYTE:g} GB/s a device"
    return _marked(node, "links", text) + speed


def device_links_text(node: UltraServerNode, device_index: int) -> str:
    """Where the links of one device to other nodes lead; nothing where that is not known."""
    if node.links == "switched":
        return _marked(node, "links", "all devices of the other nodes, through the switch")
    if node.links != "ring" or node.index is None or not node.node_count:
        return ""
    nodes = sorted({(node.index - 1) % node.node_count, (node.index + 1) % node.node_count} - {node.index})
    if not nodes:
        return ""
    return _marked(node, "links", f"ND {device_index} of node{'s' if len(nodes) > 1 else ''} " + _listed(nodes))


def _listed(nodes: list[int]) -> str:
    return " and ".join(map(str, nodes))


def _boxes(node: UltraServerNode, first: int, end: int) -> list[str]:
    return [f"[node {index}{' here' if index == node.index else ''} ]" for index in range(first, end)]


def _marked(node: UltraServerNode, field: str, text: str) -> str:
    return f"{text} (inferred)" if field in node.inferred_fields else text
