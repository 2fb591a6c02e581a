"""Tables and lists of facts in pages. Their columns and texts are those that the terminal's views use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from neurontools.views.drawing.lines import TableColumn
from neurontools.web.nodes import Node, node

RowType = TypeVar("RowType")
_MOST_PHONE_RANK = 1  # phones show the columns up to this rank, and scroll to nothing else
_MOST_TABLET_RANK = 5

_TITLES = {
    "DEV MEM": "HBM",
    "UTIL": "Utilization",
    "EXEC/S": "Executions/s",
    "STEP/S": "Steps/s",
    "STEPS/S": "Steps/s",
    "REQ/S": "Requests/s",
    "REQ P99": "Request p99",
    "P50": "Latency p50",
    "P99": "Latency p99",
    "ERR": "Errors",
    "LAST EXEC": "Last execution",
    "PROCS": "Processes",
    "EXECS": "Executions",
    "CORE-H": "Core hours",
    "MEAN UTIL": "Mean utilization",
    "MEAN MFU": "Mean MFU",
    "PEAK MEM": "Peak HBM",
    "CPU": "CPU",
    "MFU": "MFU",
    "PID": "PID",
    "FLOPS": "FLOPS",
    "RDMA READ": "RDMA read",
    "RDMA WRITE": "RDMA write",
    "": "Kind",
}


def full_title(title: str) -> str:
    """Returns the title of a column of a terminal's table in full words."""
    title = title.strip()
    return _TITLES.get(title, title.capitalize())


@dataclass(frozen=True, slots=True)
class PageColumn(Generic[RowType]):
    """A column of a table. Small screens leave out columns with a high `rank`.

    `link` returns the URL of a cell, "" for none. `sort_link` is the URL that sorts the table by this column, and
    `order` is "ascending" or "descending" if it is sorted so.
    """

    title: str
    text: Callable[[RowType], str]
    rank: int = 0
    is_text: bool = False
    style: Callable[[RowType], str] = lambda _row: "text"
    about: str = ""
    link: Callable[[RowType], str] = lambda _row: ""
    sort_link: str = ""
    order: str = ""


def page_columns(columns: Iterable[TableColumn[RowType]]) -> list[PageColumn[RowType]]:
    """Returns the columns of a table of the terminal."""
    return [PageColumn(full_title(each.title), each.text, each.rank, each.is_text, each.style) for each in columns]


def table(name: str, columns: Sequence[PageColumn[RowType]], rows: Sequence[RowType], empty: str) -> Node:
    """Builds a table with a name for screen readers, or a paragraph with `empty` if there are no rows."""
    if not rows:
        return node("p", empty, class_="dim")
    head = node("thead", node("tr", *[_title_cell(column) for column in columns]))
    body = node(
        "tbody", *[node("tr", *[_cell(column, row, not at) for at, column in enumerate(columns)]) for row in rows]
    )
    found = node("table", head, body, aria_label=name)
    return node("div", found, class_="scroll", tabindex="0", role="region", aria_label=f"Table: {name}")


def _classes(column: PageColumn[RowType], *more: str) -> str | None:
    found = [each for each in more if each and each != "text"]
    if not column.is_text:
        found.append("n")
    if column.rank > _MOST_PHONE_RANK:
        found.append("wide" if column.rank > _MOST_TABLET_RANK else "mid")
    return " ".join(found) or None


def _title_cell(column: PageColumn[RowType]) -> Node:
    content: Node = column.title
    if column.sort_link:
        arrow = {"ascending": " ▲", "descending": " ▼"}.get(column.order, "")
        content = node(
            "a", column.title, node("span", arrow, aria_hidden="true") if arrow else "", href=column.sort_link
        )
    return node(
        "th", content, scope="col", class_=_classes(column), title=column.about or None, aria_sort=column.order or None
    )


def _cell(column: PageColumn[RowType], row: RowType, is_first: bool) -> Node:
    text, address = column.text(row).strip(), column.link(row)
    content: Node = node("a", text, href=address) if address and text else text
    if is_first:
        return node("th", content, scope="row", class_=_classes(column, column.style(row)))
    return node("td", content, class_=_classes(column, column.style(row)))


def fact_list(facts: Iterable[tuple[str, str, str]]) -> Node:
    """Builds a list of facts: a name, a text and the style of the text."""
    found: list[Node] = []
    for name, text, style in facts:
        found.append(node("dt", name.strip()))
        found.append(node("dd", text, class_=None if style == "text" else style))
    return node("dl", *found)


def section(title: str, *content: Node | None, name: str, note: str = "", more: Node | None = None) -> Node:
    """Builds a section with a heading. `name` is its fragment in the URL; `note` stands beside the title."""
    beside = [node("span", note, class_="dim")] if note else []
    head = node("div", node("h2", title, id=name), *beside, more, class_="head")
    return node("section", head, *content, aria_labelledby=name)


def tiles(facts: Iterable[tuple[str, str, str]]) -> Node:
    """Builds the row of main figures: a name, a value and a note for each."""
    return node(
        "ul",
        *[
            node("li", node("span", name, class_="dim"), node("b", value), node("span", note, class_="dim"))
            for name, value, note in facts
        ],
        class_="tiles",
        aria_label="Main figures",
    )


def meter(name: str, ratio: float | None, text: str, style: str = "") -> Node:
    """Builds a bar for a share from 0 to 1 with its name and text."""
    width = 0.0 if ratio is None else 100 * min(1.0, max(0.0, ratio))
    drawn = node(
        "svg",
        node("rect", width="100", height="8", class_="track"),
        node("rect", width=round(width, 1), height="8", class_=f"fill {style}".strip()),
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        aria_hidden="true",
        class_="bar",
    )
    return node("div", node("span", name), drawn, node("span", text, class_="n"), class_="meter")
