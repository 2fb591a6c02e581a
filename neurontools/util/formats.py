"""Reads and writes small documents: JSON, CSV, markup, ASCII tables and TOML option files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache

from neurontools.util.errors import EXIT_NOT_FOUND, EXIT_USAGE, UserError
from neurontools.util.light_imports import Generic, TypeVar
from neurontools.util.terminal import cell_width, escape_controls, excerpt

TYPE_CHECKING = False  # defined here, because importing it from `typing` takes several milliseconds
if TYPE_CHECKING:
    import json
    from typing import Any

JsonValue = str | int | float | bool | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
Row = TypeVar("Row")
Record = TypeVar("Record")


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Encodes a value as ASCII JSON without control characters, compact unless indented. Raises ValueError for NaN."""
    text = _json_encoder(indent).encode(value)
    return text.replace("\x7f", "\\u007f") if "\x7f" in text else text


@cache
def _json_encoder(indent: int | None) -> json.JSONEncoder:
    import json

    separators = None if indent else (",", ":")
    return json.JSONEncoder(indent=indent, separators=separators, check_circular=False, allow_nan=False)


# Go's JSON escapes. DEL and C1 are escaped too, so that a terminal does not act on them.
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
_BIDI_CONTROLS = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_GO_ESCAPES: dict[int, str] = {code: f"\\u{code:04x}" for code in (*map(ord, "<>&"), *_CONTROLS, *_BIDI_CONTROLS)}
_GO_ESCAPES |= {ord('"'): '\\"', ord("\\"): "\\\\"}
_GO_ESCAPES |= {ord("\b"): "\\b", ord("\f"): "\\f", ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}
_GO_ESCAPES |= dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
_UNESCAPED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.,:/ =")


def encode_go_string(text: str) -> str:
    """Encodes a JSON string with Go's escapes. A lone surrogate becomes U+FFFD as in Go, because UTF-8 lacks it."""
    if _UNESCAPED.issuperset(text):
        return f'"{text}"'
    return f'"{text.translate(_GO_ESCAPES)}"'


def encode_go_json(value: JsonValue, indent: str = "    ", margin: str = "\n") -> str:
    """Encodes JSON like the original tools, which use Go: indented, keys in order, without a final newline."""
    if isinstance(value, str):
        return encode_go_string(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    deeper = margin + indent
    if isinstance(value, Mapping):
        parts = [f"{encode_go_string(key)}: {encode_go_json(item, indent, deeper)}" for key, item in value.items()]
        opening, closing = "{", "}"
    else:
        parts = [encode_go_json(item, indent, deeper) for item in value]
        opening, closing = "[", "]"
    if not parts:
        return opening + closing
    return f"{opening}{deeper}{(',' + deeper).join(parts)}{margin}{closing}"


# Spreadsheets evaluate a cell that starts with one of these as a formula. The last four are full-width forms.
_FORMULA_SIGNS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")


def copy_fields(kind: type[Record], /, *sources: object, **changed: object) -> Record:
    """Builds a dataclass. A field has its value from `changed`, else from the first source with this attribute."""
    names = [field.name for field in fields(kind) if field.name not in changed]  # type: ignore[arg-type]
    copied = {name: getattr(source, name) for source in reversed(sources) for name in names if hasattr(source, name)}
    return kind(**copied, **changed)


def csv_line(cells: Iterable[object]) -> str:
    """Encodes cells as one line of CSV with a newline. Pass untrusted text through `foreign_cell` first."""
    import csv  # a slow import, for the few documents that are CSV
    import io

    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerow(cells)
    return written.getvalue()


def foreign_cell(text: str) -> str:
    """Makes untrusted text, such as a command or a tag, safe for a CSV cell. Escapes control characters.

    Text that looks like a formula gets a leading apostrophe, which makes spreadsheets treat the cell as text.
    """
    shown = escape_controls(text)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA_SIGNS) else shown


_VOID_ELEMENTS = frozenset({"meta", "link", "input", "rect", "line", "path"})

# The same escapes as html.escape. Its module `html` is not imported, because `html` imports the slow module re.
_MARKUP_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})


class Markup(str):
    """A str that is HTML or SVG markup. Functions for markup escape every other str."""

    __slots__ = ()


def escape_markup(content: str) -> Markup:
    """Escapes text for HTML or SVG, including control characters and bidirectional formatting characters."""
    return Markup(escape_controls(content).translate(_MARKUP_ESCAPES))


def element(tag: str, *content: str, **attributes: str | float) -> Markup:
    """Builds an HTML or SVG element. `class_` sets its class; underscores in other attribute names become hyphens.

    Content that is not Markup is escaped.
    """
    texts = {key: value if isinstance(value, str) else f"{value:.6g}" for key, value in attributes.items()}
    attributes_text = "".join(f' {_attribute_name(key)}="{escape_markup(text)}"' for key, text in texts.items())
    if tag in _VOID_ELEMENTS and not content:
        return Markup(f"<{tag}{attributes_text}/>")
    return Markup(f"<{tag}{attributes_text}>{join_markup(content)}</{tag}>")


def join_markup(parts: Iterable[str]) -> Markup:
    """Concatenates pieces of markup, and escapes pieces that are not `Markup`."""
    return Markup("".join(part if isinstance(part, Markup) else escape_markup(part) for part in parts))


def _attribute_name(key: str) -> str:
    return key.rstrip("_") if key in ("class_", "for_") else key if key == "viewBox" else key.replace("_", "-")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A table column. `title` has one element per line of the heading; `read` returns the cell of a row, escaped."""

    title: tuple[str, ...]
    read: Callable[[Row], str]
    once: bool = False  # whether a group of rows shows this column in its first row only


def ascii_table(columns: Sequence[Column[Row]], groups: Sequence[Sequence[Row]]) -> str:
    """Draws a table in the style of the original neuron-ls. Rules separate groups if any group has several rows."""
    heights = range(max(len(column.title) for column in columns))
    titles = [[column.title[line] if line < len(column.title) else "" for column in columns] for line in heights]
    cells = [[_row_cells(columns, row, position) for position, row in enumerate(group)] for group in groups]
    by_column = zip(*titles, *(row for group in cells for row in group), strict=True)
    widths = [max(map(cell_width, column)) for column in by_column]
    rule = "+" + "".join("-" * (width + 2) + "+" for width in widths)
    lines = [rule, *(_table_line(titles_of_line, widths, _center) for titles_of_line in titles), rule]
    ruled = any(len(group) > 1 for group in cells)
    for group in cells:
        lines += [_table_line(row, widths, _align_left) for row in group]
        if ruled:
            lines.append(rule)
    if not ruled:
        lines.append(rule)
    return "\n".join(lines) + "\n"


def _row_cells(columns: Sequence[Column[Row]], row: Row, position: int) -> list[str]:
    return ["" if position and column.once else column.read(row) for column in columns]


def _table_line(cells: Sequence[str], widths: Sequence[int], pad: Callable[[str, int], str]) -> str:
    return "| " + " | ".join(map(pad, cells, widths)) + " |"


def _align_left(text: str, width: int) -> str:
    return text + " " * (width - cell_width(text))


def _center(text: str, width: int) -> str:
    """Centers text in a cell. An odd number of spaces puts one more on the right, as in the original tools."""
    gap = width - cell_width(text)
    return " " * (gap // 2) + text + " " * (gap - gap // 2)


_LARGEST_OPTION_FILE_BYTES = 2**16


def option_file_label(option: str, path: str) -> str:
    return f"{option} {excerpt(path, 200)}"


def read_options(option: str, path: str, defaults: Mapping[str, object]) -> dict[str, Any]:
    """Reads the TOML file that a command-line option names. Raises UserError with the name of the file.

    `defaults` maps each allowed key to its default. The default's type decides which values the key accepts: a tuple
    accepts a list of strings, a bool accepts true or false, None accepts a string. Returns the values of the keys that
    are in the file. Lists are returned as tuples.
    """
    import tomllib  # a slow import, which few commands need
    from pathlib import Path

    at = option_file_label(option, path)
    try:
        with Path(path).open("rb") as opened:
            data = opened.read(_LARGEST_OPTION_FILE_BYTES + 1)
        if len(data) > _LARGEST_OPTION_FILE_BYTES:
            raise UserError(
                f"{at}: is larger than {_LARGEST_OPTION_FILE_BYTES >> 10} KiB; it has a few lines", EXIT_USAGE
            )
        table = tomllib.loads(data.decode())
    except FileNotFoundError:
        raise UserError(f"{at}: there is no such file; see neuron-top(1)", EXIT_NOT_FOUND) from None
    except OSError as error:
        raise UserError(f"{at}: {error.strerror}; give a readable file", EXIT_USAGE) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{at}: is no TOML: {excerpt(str(error), 100)}", EXIT_USAGE) from None
    found: dict[str, Any] = {}
    for name, value in table.items():
        if name not in defaults:
            raise UserError(f"{at}: {excerpt(name, 40)!r} is not known; there are {', '.join(defaults)}", EXIT_USAGE)
        found[name] = _check_option(f"{at}: {name}", value, defaults[name])
    return found


def _check_option(at: str, value: object, default: object) -> object:
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        raise UserError(f"{at} is neither true nor false", EXIT_USAGE)
    if isinstance(default, tuple):
        if isinstance(value, list) and all(map(_is_option_text, value)):
            return tuple(value)
        raise UserError(f"{at} is no list of texts in quotes", EXIT_USAGE)
    if _is_option_text(value):
        return value
    raise UserError(f"{at} is no text in quotes", EXIT_USAGE)


def _is_option_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value
