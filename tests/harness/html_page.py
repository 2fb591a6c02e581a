"""A page of HTML as a tree, to ask what a reader finds in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = ("meta", "link", "input")


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    parts: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)

    def all(self, tag: str = "", **attributes: str) -> list[Element]:
        """Returns the elements within this one that have this tag and these attributes."""
        return [
            each for each in self._within() if tag in ("", each.tag) and attributes.items() <= each.attributes.items()
        ]

    def links(self) -> list[tuple[str, str | None]]:
        """Returns text and address of every link."""
        return [(each.text, each.attributes["href"]) for each in self.all("a")]

    def _within(self) -> Iterator[Element]:
        for part in self.parts:
            if isinstance(part, Element):
                yield part
                yield from part._within()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self.open[-1].parts.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].parts.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].parts.append(data)


def html_tree(page: str) -> Element:
    """Returns the root; AssertionError where elements are not closed in their order."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    (root,) = reader.open
    return root
