"""Trees of elements: the content of a page, its HTML, and the changes between two versions of it."""

from __future__ import annotations

from collections.abc import Iterator

from neurontools.util.formats import Markup, element, escape_markup
from neurontools.util.terminal import escape_controls

Node = str | tuple[str, dict[str, str], tuple["Node", ...]]
"""A text, or an element: its tag, attributes and children."""

Change = tuple[list[int], str, object]
"""A change of a tree: the positions of the children that lead to a node, a kind of change, and new content.

The kinds are "text" (of a text node), "attributes" (None removes one), "children" and "node", which replace them.
"""


def node(tag: str, /, *children: Node | None, **attributes: str | float | bool | None) -> Node:
    """Builds an element. Joins adjacent texts, as HTML parsers do, and leaves out None and empty texts.

    Attribute names are those of `neurontools.util.formats.element`; an attribute that is None or False is left out.
    """
    found: list[Node] = []
    for child in children:
        if isinstance(child, str):
            text = child if child.isprintable() else escape_controls(child)
            if text and found and isinstance(found[-1], str):
                found[-1] += text
            elif text:
                found.append(text)
        elif child is not None:
            found.append(child)
    given = {
        name: "" if value is True else f"{value:.6g}" if isinstance(value, float) else str(value)
        for name, value in attributes.items()
        if value is not None and value is not False
    }
    return tag, {_attribute_name(name): escape_controls(value) for name, value in given.items()}, tuple(found)


def _attribute_name(name: str) -> str:
    return name.rstrip("_") if name in ("class_", "for_") else name if name == "viewBox" else name.replace("_", "-")


def html(tree: Node) -> Markup:
    """Returns a tree as HTML, with all texts escaped."""
    if isinstance(tree, str):
        return escape_markup(tree)
    tag, attributes, children = tree
    return element(tag, *map(html, children), **attributes)


def children_of(tree: Node) -> tuple[Node, ...]:
    """Returns the children of an element; () for a text."""
    return () if isinstance(tree, str) else tree[2]


def changes(before: Node, after: Node, path: tuple[int, ...] = ()) -> Iterator[Change]:
    """Yields the changes that turn one tree into another. They can be applied in order."""
    if before == after:
        return
    if isinstance(before, str) or isinstance(after, str) or before[0] != after[0]:
        yield list(path), "text" if isinstance(before, str) and isinstance(after, str) else "node", after
        return
    if before[1] != after[1]:
        gone = {name: None for name in before[1] if name not in after[1]}
        yield list(path), "attributes", gone | {k: v for k, v in after[1].items() if before[1].get(k) != v}
    if len(before[2]) != len(after[2]):
        yield list(path), "children", after[2]
        return
    for place, (old, new) in enumerate(zip(before[2], after[2], strict=True)):
        yield from changes(old, new, (*path, place))
