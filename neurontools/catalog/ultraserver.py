"""The place of a host in an UltraServer, as it is asked for, read and simulated."""

from __future__ import annotations

from neurontools.catalog.fact import Fact
from neurontools.catalog.instance_type import InstanceType, UltraServer
from neurontools.model import UltraServerNode
from neurontools.util.terminal import excerpt

_MOST_NAME_CHARACTERS = 64
_HEXADECIMAL_DIGITS = 16


def node_of(ultraserver: UltraServer | None, index: int | None, node_count: int | None = None) -> UltraServerNode:
    """The node of this index; `node_count`, where it was read, goes before that of the catalog.

    That the nodes of a ring follow each other by their index is nowhere stated, so such links are inferred.
    """
    if ultraserver is None:
        return UltraServerNode(index, node_count)
    named: dict[str, Fact[str] | Fact[int]] = {
        "links": ultraserver.node_links,
        "link_bytes_per_second_per_device": ultraserver.node_link_bytes_per_second_per_device,
    }
    concluded = {name for name, fact in named.items() if fact.value is not None and not fact.certain}
    if ultraserver.node_links.value == "ring":
        concluded.add("links")
    if not ultraserver.node_links.certain:  # that the type is a node of this UltraServer is concluded
        concluded |= {"name"} if node_count is not None else {"name", "node_count"}
    return UltraServerNode(
        index=index,
        node_count=ultraserver.node_count if node_count is None else node_count,
        name=ultraserver.name or None,
        links=ultraserver.node_links.value,
        link_bytes_per_second_per_device=ultraserver.node_link_bytes_per_second_per_device.value,
        inferred_fields=tuple(sorted(concluded)),
    )


def named_place(text: str) -> tuple[str, int]:
    """The name and the index of NAME:INDEX; ValueError where it is not so written."""
    name, _, position = text.rpartition(":")
    if not (_is_name(name) and position.isascii() and position.isdigit() and len(position) < 5):
        raise ValueError(
            f"{excerpt(text, 80)!r} is no place in an UltraServer; write NAME:INDEX, such as us-1:0, with a name "
            f"of up to {_MOST_NAME_CHARACTERS} letters, digits, dots, dashes and underscores"
        )
    return name, int(position)


def asked_place(text: str, instance_type: InstanceType) -> tuple[str, int]:
    """The name and the index that NAME:INDEX asks for; ValueError says in a line why this type can't have it."""
    name, index = named_place(text)
    ultraserver = instance_type.ultraserver
    if ultraserver is None:
        raise ValueError(
            f"{instance_type.name} is in no UltraServer; simulate a type that is, such as trn2u.48xlarge, or leave it "
            "out"
        )
    if index >= ultraserver.node_count:
        raise ValueError(
            f"there is no node {index}: a {ultraserver.name} has {ultraserver.node_count}; "
            f"give 0 to {ultraserver.node_count - 1}"
        )
    return name, index


def simulated_server_id(name: str) -> str:
    """How the driver's tree names an UltraServer of this name: 16 hexadecimal digits.

    Those that are made up begin with ffffffff, so that none passes for real.
    """
    if is_server_id(name):
        return name
    from zlib import crc32

    return f"ffffffff{crc32(name.encode()):08x}"


def is_server_id(text: str) -> bool:
    """Whether this is the id of an UltraServer as the driver writes it; zeros stand for none."""
    is_hexadecimal = len(text) == _HEXADECIMAL_DIGITS and all(digit in "0123456789abcdef" for digit in text)
    return is_hexadecimal and bool(text.strip("0"))


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _MOST_NAME_CHARACTERS and all(
        letter.isascii() and (letter.isalnum() or letter in "._-") for letter in text
    )
