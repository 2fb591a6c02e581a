"""Lines of styled text: what every page of neuron-top is made of.

A line is a sequence of runs, a run a text and the name of a style (`drawing.style` lists them). Nothing here
knows a terminal: the same lines become Textual strips, ANSI sequences or plain text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from neurontools.util.terminal import cell_width, escape_controls

Run = tuple[str, str]
Line = tuple[Run, ...]

BLANK: Line = ()
_ELLIPSIS = "…"
width_of = lru_cache(8192)(cell_width)
"""Terminal cells of a text, remembered: the same bars and labels come again every second."""


@dataclass(frozen=True, slots=True)
class Target:
    """What can be clicked: cells `left` to `right` (exclusive) of line `row`, and what they stand for."""

    row: int
    left: int
    right: int
    action: str
    argument: str = ""


@dataclass(slots=True)
class Page:
    """A page as drawn: its lines, and where it can be clicked."""

    lines: list[Line] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    list_count: int = 0  # of the page's list: how many rows it has, how many are visible, and from which on
    list_height: int = 0
    list_top: int = 0

    def add(self, *lines: Line) -> None:
        """Add lines below."""
        self.lines.extend(lines)

    def append(self, other: Page) -> None:
        """Add another page below this one; if it has a list, that becomes this page's."""
        offset = len(self.lines)
        self.lines.extend(other.lines)
        for target in other.targets:
            self.targets.append(Target(target.row + offset, target.left, target.right, target.action, target.argument))
        if other.list_height:
            self.list_count, self.list_height, self.list_top = other.list_count, other.list_height, other.list_top

    def add_list(self, rows: list[Line], count: int, height: int, top: int) -> None:
        """Add the visible rows of a list, each a target "row" with its position in the whole list."""
        for position, row in enumerate(rows):
            self.targets.append(Target(len(self.lines), 0, 10_000, "row", str(top + position)))
            self.lines.append(row)
        self.list_count, self.list_height, self.list_top = count, height, top

    def target_at(self, column: int, row: int) -> Target | None:
        """What is at a cell; the latest added when there are several."""
        for target in reversed(self.targets):
            if target.row == row and target.left <= column < target.right:
                return target
        return None


def line_width(line: Iterable[Run]) -> int:
    """Terminal cells of a line."""
    return sum(width_of(text) for text, _ in line)


def fit(line: Sequence[Run], width: int, style: str = "text") -> Line:
    """The line cut or padded to exactly `width` cells."""
    used = 0
    for position, (text, _) in enumerate(line):
        cells = width_of(text)
        if used + cells > width:
            kept = list(line[:position])
            kept.append((pad(clip(text, width - used), width - used), line[position][1]))
            return tuple(kept)
        used += cells
    if used == width:
        return tuple(line)
    return (*line, (" " * (width - used), style))


def fit_marked(line: Sequence[Run], width: int) -> Line:
    """The same; a line that is cut ends in an ellipsis, which says so."""
    if line_width(line) <= width or width <= 0:
        return fit(line, width)
    return (*fit(line, width - 1), (_ELLIPSIS, "dim"))


def fact(name: str, text: str, width: int, name_cells: int, style: str = "text") -> Line:
    """A line that tells something by its name: names in a column of `name_cells`, and always a space behind them."""
    label = f" {name:<{name_cells}} "
    return fit(((label, "label"), (clip(text, width - width_of(label), mark=True), style)), width)


def clip(text: str, width: int, *, mark: bool = False) -> str:
    """`text` cut to at most `width` cells, never through a wide character; `mark`: a cut one ends in an ellipsis."""
    if width <= 0:
        return ""
    if width_of(text) <= width:
        return text
    room = width - 1 if mark else width
    if text.isascii():
        return text[:room] + (_ELLIPSIS if mark else "")
    kept, used = [], 0
    for character in text[: 4 * room + 16]:
        cells = cell_width(character)
        if used + cells > room:
            break
        kept.append(character)
        used += cells
    return "".join(kept) + (_ELLIPSIS if mark else "")


def pad(text: str, width: int) -> str:
    """`text` with spaces behind it, up to `width` cells; longer texts stay."""
    return text + " " * (width - width_of(text))


def cell(text: str, width: int, *, right: bool = False) -> str:
    """`text` as a cell of a table: exactly `width` cells."""
    text = clip(text, width, mark=True)
    gap = " " * (width - width_of(text))
    return gap + text if right else text + gap


def foreign(text: str, longest: int = 400) -> str:
    """Text from elsewhere (a command, a tag) made fit for a line; very long ones are cut before they cost anything."""
    return escape_controls(text[:longest])


def ascii_only(line: Line) -> Line:
    """The line without characters that an ASCII terminal lacks: question marks, as wide as what they stand for."""
    return tuple((text if text.isascii() else "".join(map(_ascii_cells, text)), style) for text, style in line)


def _ascii_cells(character: str) -> str:
    if character == _ELLIPSIS:
        return "~"
    return character if character.isascii() else "?" * cell_width(character)


def styled(line: Line, suffix: str) -> Line:
    """The line with every style made its variant, "+selected" for one."""
    return tuple((text, style + suffix) for text, style in line)


def plain(line: Iterable[Run]) -> str:
    """The text of a line, without styles and spaces at its end."""
    return "".join(text for text, _ in line).rstrip()
