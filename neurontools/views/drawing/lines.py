"""Lines of styled text, the styles and themes for them, and tables made of such lines.

A line is a sequence of runs; a run is a text and the name of a style. The lines do not depend on a terminal: callers
convert them to Textual strips, ANSI sequences, HTML or plain text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Generic, NamedTuple, TypeVar

from neurontools.util.terminal import cell_width, escape_controls, split_clusters, with_certain_width
from neurontools.util.units import short_count_text

Run = tuple[str, str]
Line = tuple[Run, ...]
BLANK: Line = ()
_ELLIPSIS = "…"
width_of = lru_cache(8192)(cell_width)
"""Returns the number of terminal cells of a text. Cached, because pages draw the same bars and labels every second."""
# ASCII, the middle dot, the ellipsis, the cross, frames, blocks, shapes and braille, of which most lines consist
_is_narrow = re.compile("[ -~·…✗\u2500-\u25fc\u2800-\u28ff]*").fullmatch
RowType = TypeVar("RowType")
_LEAST_REST_CELLS = 12
FOUND, SELECTED = "+found", "+selected"
_QUIET = ("text", "dim", "idle")
LOADS = ("load1", "load2", "load3", "load4", "load5", "load6", "load7", "load8")
"""Styles of the steps of the heat scale, from low to high utilization. Neighbours are equally far apart in OKLab."""
_COLOUR_PATTERN = re.compile(r"#[0-9a-fA-F]{6}", re.ASCII)
_NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,30}", re.ASCII)
_COLOUR_KEYS = ("color", "background")
_ATTRIBUTE_KEYS = ("bold", "dim", "reverse", "underline")


class ClickTarget(NamedTuple):
    """A clickable area: the cells `left` to `right` (exclusive) of line `row`, and the action it triggers."""

    row: int
    left: int
    right: int
    action: str
    argument: str = ""

    def moved(self, rows: int, cells: int) -> ClickTarget:
        """Returns the same area `rows` lines further down and `cells` cells further to the right."""
        return ClickTarget(self.row + rows, self.left + cells, self.right + cells, self.action, self.argument)


@dataclass(slots=True)
class TextPage:
    """A drawn page: its lines and clickable areas."""

    lines: list[Line] = field(default_factory=list)
    targets: list[ClickTarget] = field(default_factory=list)
    list_count: int = 0  # number of rows of the page's list; `list_height` rows are visible, from row `list_top` on
    list_height: int = 0
    list_top: int = 0

    def add_lines(self, *lines: Line) -> None:
        self.lines.extend(lines)

    def append_page(self, other: TextPage) -> None:
        """Appends another page below this page. If the other page has a list, that list replaces this page's list."""
        offset = len(self.lines)
        self.lines.extend(other.lines)
        self.targets += [target.moved(offset, 0) for target in other.targets] if offset else other.targets
        if other.list_height:
            self.list_count, self.list_height, self.list_top = other.list_count, other.list_height, other.list_top

    def add_list(self, rows: list[Line], count: int, height: int, top: int) -> None:
        """Adds the visible rows of a list. A click on a row triggers the action "row" with its position in the list."""
        for position, row in enumerate(rows):
            self.targets.append(ClickTarget(len(self.lines), 0, 10_000, "row", str(top + position)))
            self.lines.append(row)
        self.list_count, self.list_height, self.list_top = count, height, top

    def target_at(self, column: int, row: int) -> ClickTarget | None:
        """Returns the clickable area at a cell, the one added last if several overlap; None if there is none."""
        found = (target for target in reversed(self.targets) if target.row == row)
        return next((target for target in found if target.left <= column < target.right), None)

    def nearest_target(self, action: str, column: int, row: int) -> ClickTarget | None:
        """Returns the clickable area with this action that is nearest to a cell; None if there is none."""
        found = [target for target in self.targets if target.action == action]
        return min(found, key=lambda target: abs(target.row - row) + abs(target.left - column), default=None)


def line_width(line: Iterable[Run]) -> int:
    """Returns the number of terminal cells of a line."""
    return sum(run_widths(line))


def run_widths(line: Iterable[Run]) -> list[int]:
    """Returns the number of terminal cells of each run of a line."""
    texts = [text for text, _ in line]
    # One test of the whole line takes less time than one of each run.
    return list(map(len if _is_narrow("".join(texts)) else width_of, texts))


def append_run(runs: list[Run], text: str, style: str) -> None:
    """Appends a text to a line, as part of the last run if that has the same style."""
    if runs and runs[-1][1] == style:
        runs[-1] = (runs[-1][0] + text, style)
    else:
        runs.append((text, style))


def fit(line: Sequence[Run], width: int, style: str = "text") -> Line:
    """Cuts a line, or pads it with spaces, to exactly `width` terminal cells."""
    used = line_width(line)
    if used == width:
        return tuple(line)
    if used < width:
        return (*line, (" " * (width - used), style))
    used = position = 0
    while used + (cells := width_of(line[position][0])) <= width:
        used += cells
        position += 1
    text, style = line[position]
    return (*line[:position], (pad(clip(text, width - used), width - used), style))


def fit_marked(line: Sequence[Run], width: int) -> Line:
    """Cuts or pads a line to exactly `width` terminal cells, and ends a cut line in an ellipsis."""
    if line_width(line) <= width or width <= 0:
        return fit(line, width)
    return (*fit(line, width - 1), (_ELLIPSIS, "dim"))


def labelled_line(name: str, text: str, width: int, name_cells: int, style: str = "text") -> Line:
    """Returns a line with a label, padded to `name_cells` terminal cells, and a value."""
    label = f" {name:<{name_cells}} "
    return fit(((label, "label"), (clip(text, width - width_of(label), mark=True), style)), width)


def clip(text: str, width: int, *, mark: bool = False) -> str:
    """Cuts a text to at most `width` terminal cells, never through a wide character or a grapheme cluster.

    With `mark`, a cut text ends in an ellipsis.
    """
    if width <= 0:
        return ""
    if width_of(text) <= width:
        return text
    room = width - 1 if mark else width
    if text.isascii():
        return text[:room] + (_ELLIPSIS if mark else "")
    characters, used = [], 0
    for character in split_clusters(text[: 8 * room + 32]):
        cells = cell_width(character)
        if used + cells > room:
            break
        characters.append(character)
        used += cells
    return "".join(characters) + (_ELLIPSIS if mark else "")


def pad(text: str, width: int) -> str:
    """Pads a text with spaces to `width` terminal cells; returns a longer text unchanged."""
    return text + " " * (width - width_of(text))


def cell(text: str, width: int, *, right: bool = False) -> str:
    """Cuts or pads a text to exactly `width` terminal cells, and ends a cut text in an ellipsis."""
    text = clip(text, width, mark=True)
    return " " * (width - width_of(text)) + text if right else pad(text, width)


def printable(text: str, longest: int = 400) -> str:
    """Escapes control characters of untrusted text, such as a command or tag; cuts the text to `longest` characters.

    Simplifies joined emoji: if the terminal drew them in another width, the rest of the row would move.
    """
    return with_certain_width(escape_controls(text[:longest]))


def ascii_only(line: Line) -> Line:
    """Replaces each non-ASCII character of a line with question marks of the same width, and an ellipsis with "~"."""
    return tuple(
        (text if text.isascii() else "".join(map(_ascii_cells, split_clusters(text))), style) for text, style in line
    )


def _ascii_cells(cluster: str) -> str:
    if cluster == _ELLIPSIS:
        return "~"
    return cluster if cluster.isascii() else "?" * cell_width(cluster)


def styled(line: Line, suffix: str) -> Line:
    """Appends a suffix such as "+selected" to the style name of every run of a line."""
    return tuple((text, style + suffix) for text, style in line)


def plain_text(line: Iterable[Run]) -> str:
    """Returns the text of a line, without its styles and without trailing spaces."""
    return "".join(text for text, _ in line).rstrip()


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[RowType]):
    """A column of a table. Narrow screens drop columns with the highest `rank` first.

    `cells` is the width of the column; a column of width 0 gets the remaining width.
    """

    title: str
    cells: int
    rank: int
    text: Callable[[RowType], str]
    is_text: bool = False
    style: Callable[[RowType], str] = lambda _row: "text"


def count_column(
    title: str,
    cells: int,
    rank: int,
    count: Callable[[RowType], int | None],
    style: Callable[[RowType], str] = lambda _row: "text",
) -> TableColumn[RowType]:
    """Returns a table column of counts. Abbreviates counts that are too wide for the column, such as 12.3k."""
    return TableColumn(title, cells, rank, lambda row: short_count_text(count(row), cells), False, style)


def fitting_columns(columns: Sequence[TableColumn[RowType]], width: int) -> list[tuple[TableColumn[RowType], int]]:
    """Returns the columns that fit in `width` terminal cells, each with its width."""
    fitting: list[TableColumn[RowType]] = []
    used = 1
    for column in sorted(columns, key=lambda column: column.rank):
        if column.cells and used + column.cells + 1 <= width:
            fitting.append(column)
            used += column.cells + 1
    rest = width - used
    has_rest = rest >= _LEAST_REST_CELLS
    shown = [column for column in columns if column in fitting or (not column.cells and has_rest)]
    return [(column, column.cells or rest - 1) for column in shown]


def title_line(columns: Sequence[tuple[TableColumn[RowType], int]], width: int) -> Line:
    runs: list[Run] = [(" ", "column")]
    for column, cells in columns:
        runs.append((cell(column.title, cells, right=not column.is_text) + " ", "column"))
    return fit(runs, width, "column")


def row_line(columns: Sequence[tuple[TableColumn[RowType], int]], row: RowType, width: int) -> Line:
    runs: list[Run] = [(" ", "text")]
    for column, cells in columns:
        text = column.text(row)
        shown = cell(text, cells, right=not column.is_text) if column.cells else clip(text, cells, mark=True)
        runs += [(shown, column.style(row)), (" ", "text")]
    return fit(runs, width)


@dataclass(frozen=True, slots=True)
class Style:
    """How text looks: colours as "#rrggbb" (None: the terminal's default) and attributes such as bold."""

    color: str | None = None
    background: str | None = None
    bold: bool = False
    dim: bool = False
    reverse: bool = False
    underline: bool = False


@dataclass(frozen=True, slots=True)
class Theme:
    """A colour theme: maps style names to styles. A name without a style gets the style `text`."""

    name: str
    is_dark: bool
    styles: dict[str, Style]
    selected_background: str | None

    def style(self, name: str) -> Style:
        """Returns the style of a name, which may end in the suffixes `+found` and `+selected`."""
        return _resolve_style(self.name, name)


def _make_theme(
    name: str,
    *,
    is_dark: bool,
    text: str,
    dim: str,
    accent: str,
    good: str,
    warn: str,
    bad: str,
    busy: str,
    load: tuple[str, ...],
    system: str,
    track: str,
    bar: tuple[str, str],
    selected: str,
) -> Theme:
    return Theme(
        name,
        is_dark,
        {
            "text": Style(text),
            "dim": Style(dim),
            "strong": Style(text, bold=True),
            "label": Style(accent),
            "heading": Style(accent, bold=True),
            "rule": Style(track),
            "title": Style(bar[0], bar[1], bold=True),
            "title_dim": Style(bar[0], bar[1]),
            "title_warn": (warning := Style("#000000" if is_dark else "#ffffff", warn, bold=True)),
            "title_warning": warning,
            "title_bad": (critical := Style("#ffffff", bad if not is_dark else "#b3261e", bold=True)),
            "title_critical": critical,
            "good": Style(good),
            "warn": Style(warn),
            "bad": Style(bad, bold=True),
            "busy": Style(busy),
            "held": Style(warn),
            **{name: Style(color) for name, color in zip(LOADS, load, strict=True)},
            "idle": Style(dim),
            "system": Style(system),
            "track": Style(track),
            "memory": Style(accent),
            "spark": Style(busy),
            "tab": Style(dim),
            "tab_current": Style(good, bold=True),
            "key": Style(accent, bold=True),
            "column": Style(bar[0], bar[1]),
            "column_sorted": Style(bar[0], bar[1], bold=True, underline=True),
            "mine": Style("#000000" if is_dark else "#ffffff", good, bold=True),
            "lit": Style(text, selected),
        },
        selected,
    )


DARK = _make_theme(
    "dark",
    is_dark=True,
    text="#d8dee4",
    dim="#8b949e",
    accent="#79b8ff",
    good="#56d364",
    warn="#e3b341",
    bad="#ff7b72",
    busy="#3fb950",
    load=("#78a1ec", "#4eb6f0", "#02c9e5", "#12d6ca", "#2de0a8", "#6aed91", "#9ff673", "#d1fc4c"),
    system="#d29922",
    track="#3d444d",
    bar=("#e6edf3", "#1f4b7a"),
    selected="#26364a",
)


LIGHT = _make_theme(
    "light",
    is_dark=False,
    text="#1f2328",
    dim="#59626b",
    accent="#0550ae",
    good="#116329",
    warn="#7d4e00",
    bad="#b31d28",
    busy="#1a7f37",
    load=("#2d6ac1", "#036fa0", "#056e7b", "#056a55", "#02642a", "#055119", "#0a3f0c", "#092d02"),
    system="#9a6700",
    track="#c4cad1",
    bar=("#ffffff", "#0550ae"),
    selected="#e6f1ff",
)


# The Okabe-Ito palette is safe for common colour blindness: blue, orange and vermilion replace green, yellow and red.
COLOUR_BLIND = _make_theme(
    "colour-blind",
    is_dark=True,
    text="#e6e6e6",
    dim="#9c9c9c",
    accent="#56b4e9",
    good="#56b4e9",
    warn="#e69f00",
    bad="#ff8a4a",
    busy="#0f9bd8",
    load=("#62a8f4", "#7faede", "#9ab3c7", "#b2b9b4", "#c5c8b3", "#d8d6b2", "#ebe5af", "#fff4ac"),
    system="#f0e442",
    track="#4d4d4d",
    bar=("#ffffff", "#004d80"),
    selected="#2a3640",
)


COLOUR_BLIND_LIGHT = _make_theme(
    "colour-blind-light",
    is_dark=False,
    text="#1a1a1a",
    dim="#5c5c5c",
    accent="#005b94",
    good="#005b94",
    warn="#8a5a00",
    bad="#a83200",
    busy="#0072b2",
    load=("#876400", "#6b6147", "#515f70", "#2e5589", "#084491", "#033172", "#001e56", "#000c3a"),
    system="#8f7a00",
    track="#c2c2c2",
    bar=("#ffffff", "#005b94"),
    selected="#e6f0fb",
)


MONO = Theme(
    "mono",
    is_dark=True,
    styles={
        "text": Style(),
        "dim": Style(dim=True),
        "strong": Style(bold=True),
        "heading": Style(bold=True),
        "title": Style(reverse=True, bold=True),
        "title_dim": Style(reverse=True),
        "title_warn": Style(reverse=True, bold=True),
        "title_bad": Style(reverse=True, bold=True, underline=True),
        "title_warning": Style(reverse=True, bold=True),
        "title_critical": Style(reverse=True, bold=True, underline=True),
        "bad": Style(bold=True, underline=True),
        "warn": Style(bold=True),
        "tab_current": Style(bold=True),
        "key": Style(bold=True),
        "column": Style(reverse=True),
        "column_sorted": Style(reverse=True, bold=True, underline=True),
        "track": Style(dim=True),
        "rule": Style(dim=True),
        "idle": Style(dim=True),
        "mine": Style(reverse=True),
        "lit": Style(bold=True),
    },
    selected_background=None,
)


THEMES = {theme.name: theme for theme in (DARK, LIGHT, COLOUR_BLIND, COLOUR_BLIND_LIGHT, MONO)}


@cache
def _resolve_style(theme_name: str, name: str) -> Style:
    theme = THEMES[theme_name]
    base, *more = name.split("+")
    style = theme.styles.get(base, theme.styles["text"])
    if FOUND[1:] in more:
        color = theme.style("strong").color if style.dim or base in _QUIET else style.color
        style = replace(style, color=color, bold=True, dim=False)
    if SELECTED[1:] not in more:
        return style
    if theme.selected_background is None:
        return Style(bold=style.bold, reverse=not style.reverse, underline=style.underline)
    color = theme.style("text").color if base in _QUIET else style.color
    return Style(color, theme.selected_background, bold=True, underline=style.underline)


class InvalidTheme(ValueError):
    """A theme definition is invalid. The message names the key and the accepted values."""


def parse_theme(name: str, table: object) -> Theme:
    """Parses a colour theme from a table, for example of a TOML file. Raises InvalidTheme for an invalid name or entry.

    The key `base` names the theme to start from (default: dark); every other key replaces one style. A style is a
    colour (`"#rrggbb"`, or `""` for the terminal's default), or a table of `color`, `background`, `bold`, `dim`,
    `reverse` and `underline`. The key `selected` is the background of the selected row.
    """
    if not _NAME_PATTERN.fullmatch(name) or name in THEMES or name == "auto":
        name_rule = "use up to 31 of a-z, 0-9 and -, and not the name of a built-in theme"
        raise InvalidTheme(f"{name[:40]!r} is not a valid theme name; {name_rule}")
    if not isinstance(table, Mapping):
        raise InvalidTheme("must be a table of styles")
    base_name = table.get("base", "dark")
    if not isinstance(base_name, str) or base_name not in THEMES:
        raise InvalidTheme(f"base: {_short_repr(base_name)} is not one of {', '.join(THEMES)}")
    base = THEMES[base_name]
    style_names = THEMES["dark"].styles
    styles = dict(base.styles)
    selected = base.selected_background
    for key, value in table.items():
        if key == "selected":
            selected = _parse_colour(key, value)
        elif key in style_names:
            styles[key] = _parse_style(key, value, styles.get(key, styles["text"]))
        elif key != "base":
            raise InvalidTheme(f"{_short_repr(key)} is not a style; styles are selected, {', '.join(style_names)}")
    return Theme(name, base.is_dark, styles, selected)


def _parse_style(key: str, value: object, before: Style) -> Style:
    if not isinstance(value, Mapping):
        return replace(before, color=_parse_colour(key, value))
    changes: dict[str, object] = {}
    for part, given in value.items():
        if part in _COLOUR_KEYS:
            changes[part] = _parse_colour(f"{key}.{part}", given)
        elif part not in _ATTRIBUTE_KEYS:
            raise InvalidTheme(
                f"{key}: {_short_repr(part)} is not one of {', '.join((*_COLOUR_KEYS, *_ATTRIBUTE_KEYS))}"
            )
        elif not isinstance(given, bool):
            raise InvalidTheme(f"{key}.{part}: {_short_repr(given)} is neither true nor false")
        else:
            changes[part] = given
    return replace(before, **changes)  # type: ignore[arg-type]


def _parse_colour(key: str, value: object) -> str | None:
    if value == "":
        return None
    if not isinstance(value, str) or not _COLOUR_PATTERN.fullmatch(value):
        raise InvalidTheme(
            f'{key}: {_short_repr(value)} is not a colour; give "#rrggbb", or "" for the terminal\'s own'
        )
    return value


def _short_repr(value: object) -> str:
    return repr(value)[:60]
