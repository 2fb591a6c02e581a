"""Markup whose texts are texts: what is not markup already is escaped, whatever it is."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from neurontools.util.text.terminal import visible

_EMPTY = frozenset({"meta", "link", "input", "rect", "line", "path"})


class Markup(str):
    """Text that is markup: made here, or escaped."""

    __slots__ = ()


def text(content: str) -> Markup:
    """A text as markup; control characters are made visible, and so are those that turn the direction of writing."""
    return Markup(escape(visible(content), quote=True))


def element(tag: str, *content: str, **attributes: str | float) -> Markup:
    """An element: `class_` is its class, and underscores in other names stand for hyphens.

    Content that is no Markup is text.
    """
    told = "".join(f' {_name(key)}="{text(_value(value))}"' for key, value in attributes.items())
    if tag in _EMPTY and not content:
        return Markup(f"<{tag}{told}/>")
    return Markup(f"<{tag}{told}>{joined(content)}</{tag}>")


def joined(parts: Iterable[str]) -> Markup:
    """Parts behind each other."""
    return Markup("".join(part if isinstance(part, Markup) else text(part) for part in parts))


def _name(key: str) -> str:
    return key.rstrip("_") if key in ("class_", "for_") else key if key == "viewBox" else key.replace("_", "-")


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
