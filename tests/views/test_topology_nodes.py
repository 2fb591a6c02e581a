"""The UltraServer around a host, in neuron-ls -t and on the topology page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neurontools import catalog
from neurontools.catalog.ultraserver import node_of
from neurontools.model import Snapshot, UltraServerNode
from neurontools.views.drawing.line import plain
from neurontools.views.drawing.scene import Scene
from neurontools.views.topology.page import topology_page
from neurontools.views.topology.picture import topology_picture
from tests.harness.snapshots import snapshot_of


def node_host(instance_type: str, index: int, name: str = "us-1") -> Snapshot:
    snapshot = snapshot_of(instance_type)
    node = node_of(catalog.load(instance_type).ultraserver, index)
    return replace(snapshot, instance=replace(snapshot.instance, ultraserver_id=name, ultraserver_node=node))


def test_a_ring_of_nodes_with_this_one_marked() -> None:
    below = topology_picture(node_host("trn2u.48xlarge", 1)).split("\n\n")[1:]
    assert below[0] == "UltraServer us-1 (Trn2 UltraServer): this host is node 1 of 4"
    assert below[1] == "*––►[node 0 ]◄––►[node 1 here ]◄––►[node 2 ]◄––►[node 3 ]◄––*"
    assert below[2] == (
        "Each device is linked to those of the same index on the node before and the one after (inferred), "
        "256 GB/s a device.\nAll nodes together: 64 devices, 256 NeuronCores."
    )
    assert below[3:] == ["Legend:", "        *––► = Wrap-around link\n"]
    assert "512 NeuronCores" in topology_picture(node_host("trn2u.48xlarge", 1), 1)


def test_a_switch_joins_more_nodes_than_a_row_has_room_for() -> None:
    text = topology_picture(node_host("trn3e.24xlarge", 20))
    assert "(Trn3 Gen2 UltraServer (inferred)): this host is node 20 of 36 (inferred)" in text
    assert text.count("[node ") == 36
    assert text.count(" here ]") == 1
    assert max(map(len, text.splitlines())) < 120
    assert "All nodes together: 144 devices, 576 NeuronCores (inferred)." in text


def test_a_host_in_no_ultraserver_has_no_such_lines() -> None:
    assert "UltraServer" not in topology_picture(snapshot_of("trn2u.48xlarge"))


@pytest.mark.parametrize("index", [None, 0])
def test_what_is_not_known_is_not_drawn(index: int | None) -> None:
    snapshot = snapshot_of("trn2u.48xlarge")
    bare = replace(snapshot.instance, ultraserver_id="\x1b[2Jus", ultraserver_node=UltraServerNode(index, None))
    lines = topology_picture(replace(snapshot, instance=bare)).splitlines()
    assert lines[lines.index("Legend:") - 2] == (
        f"UltraServer \\x1b[2Jus: this host is node {'-' if index is None else 0}"
    )


def test_the_page_says_where_the_links_of_a_device_lead() -> None:
    def rows(snapshot: Snapshot, device: int) -> list[str]:
        page = topology_page(Scene.of(snapshot, page="topology", device_index=device), 100, 40)
        return [plain(line).strip() for line in page.lines]

    ring = rows(node_host("trn2u.48xlarge", 0), 5)
    assert "UltraServer us-1 (Trn2 UltraServer): this host is node 0 of 4" in ring
    assert "nodes    ND 5 of nodes 1 and 3 (inferred)" in ring
    assert "nodes    all devices of the other nodes, through the switch" in rows(node_host("trn3s.48xlarge", 3), 0)
    assert not any(row.startswith("nodes") for row in rows(snapshot_of("trn2u.48xlarge"), 5))
