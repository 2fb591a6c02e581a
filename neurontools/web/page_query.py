"""Page query: the options that a viewer has chosen. They are in the URL; the server does not store them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from urllib.parse import parse_qsl, urlencode

WINDOWS_SECONDS = (60, 300, 900, 3600)
_MAX_QUERY_LENGTH = 1000
MAX_TEXT_LENGTH = 200
_MAX_NUMBER = 2**31


@dataclass(frozen=True, slots=True)
class PageQuery:
    """The name of a page, and the options that the viewer has chosen on it."""

    page: str
    first: int = 0  # number of hosts that the page of many hosts skips
    details: int | None = None  # PID of the process whose details are shown
    device: int = 0
    core: int | None = None
    window: int = 300  # time window of the plots, in seconds
    sort: str = ""
    descending: int = 0
    filter: str = ""
    group: str = ""  # property by which the page of many hosts groups the hosts
    open: str = ""  # key of the unfolded job or group
    tree: int = 0  # 1 shows memory by device, core and model, too

    def query(self, **changes: object) -> str:
        """Returns the URL query string after `changes`; "" if every option has its default."""
        parameters = self.parameters(**changes)
        return f"?{urlencode(parameters)}" if parameters else ""

    def parameters(self, **changes: object) -> list[tuple[str, object]]:
        """Applies `changes`, then returns names and values of the options that differ from their defaults."""
        chosen = [(name, usual, changes.get(name, getattr(self, name))) for name, usual in _DEFAULTS.items()]
        return [(name, value) for name, usual, value in chosen if value is not None and value != usual]


_DEFAULTS = {field.name: field.default for field in fields(PageQuery) if field.name != "page"}
_NUMBER_NAMES = {name for name, usual in _DEFAULTS.items() if not isinstance(usual, str)}


def parse_page_query(page: str, query: str) -> PageQuery:
    """Parses the query string of a URL. Ignores unknown names. Raises ValueError for an invalid value."""
    if len(query) > _MAX_QUERY_LENGTH:
        raise ValueError("the address is too long")
    given: dict[str, object] = {}
    for name, text in parse_qsl(query, keep_blank_values=True, max_num_fields=50):
        if name in _NUMBER_NAMES:
            if not (text.isascii() and text.isdecimal() and len(text) < 12 and int(text) < _MAX_NUMBER):
                raise ValueError(f"{name}: give a number")
            given[name] = int(text)
        elif name in _DEFAULTS:
            if len(text) > MAX_TEXT_LENGTH:
                raise ValueError(f"{name}: too long")
            given[name] = text.strip() if name == "filter" else text
    if given.get("window", WINDOWS_SECONDS[0]) not in WINDOWS_SECONDS:
        raise ValueError(f"window: give one of {', '.join(map(str, WINDOWS_SECONDS))} seconds")
    return PageQuery(page, **given)  # type: ignore[arg-type]
