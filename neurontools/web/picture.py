"""One picture that many look at: its rows, when each of them changed, and what brings a viewer up to date."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Sequence

from neurontools.net.http.compression import Document, Part
from neurontools.web.rows import Row

_EPOCH = secrets.token_hex(4)
"""Versions of another process mean nothing to this one: who comes with such a one gets all."""


class Picture:
    """What is drawn of a choice. `draw` makes title and rows. Belongs to the event loop's thread."""

    def __init__(self, draw: Callable[[], tuple[str, tuple[Row, ...]]]) -> None:
        self._draw = draw
        self._epoch = f"{_EPOCH}{secrets.token_hex(3)}"
        self._changed_at: list[int] = []  # the version in which each row is as it is
        self._whole_since = 0  # the version since which rows only changed, each in its place
        self._events: dict[int, bytes] = {}
        self._changed = asyncio.Event()
        self._page: tuple[int, Document] | None = None
        self.rows: tuple[Row, ...] = ()
        self.title = ""
        self.number = 0
        self.drawn_at_seconds = float("-inf")
        self.viewers = 0

    @property
    def version(self) -> str:
        """Names what is shown now, in this process alone."""
        return f"{self._epoch}.{self.number}"

    def redraw(self, now_seconds: float) -> None:
        """Draw it anew, and wake who waits for that, if anything is different."""
        title, rows = self._draw()
        self.drawn_at_seconds = now_seconds
        if rows == self.rows and title == self.title:
            return
        self.number += 1
        if _kinds(rows) != _kinds(self.rows):
            self._whole_since = self.number
            self._changed_at = [self.number] * len(rows)
        else:
            for place, (row, before) in enumerate(zip(rows, self.rows, strict=True)):
                if row != before:
                    self._changed_at[place] = self.number
        self.rows, self.title = rows, title
        self._events.clear()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def number_of(self, version: str) -> int:
        """The number of a version; 0, before all, of one of another process."""
        epoch, _, number = version.partition(".")
        is_known = epoch == self._epoch and number.isascii() and number.isdecimal() and len(number) < 12
        return min(int(number), self.number) if is_known else 0

    def event_since(self, number: int) -> bytes:
        """The event that brings who has seen a version to the latest; the same bytes for all who have."""
        event = self._events.get(number)
        if event is None:
            told: dict[str, object] = {"title": self.title}
            if number < self._whole_since:
                told["whole"] = self.rows
            else:
                told["rows"] = [(place, row) for place, row in enumerate(self.rows) if self._changed_at[place] > number]
            text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
            event = self._events[number] = f"event: rows\nid: {self.version}\ndata: {text}\n\n".encode()
        return event

    def page(self, made: Callable[[], bytes]) -> Document:
        """The page that is sent first; made once for all who ask for it as it is now."""
        if self._page is None or self._page[0] != self.number:
            self._page = self.number, Document([Part(made())])
        return self._page[1]

    async def newer_than(self, number: int) -> None:
        """Wait until there is a version behind this one."""
        while self.number <= number:
            await self._changed.wait()


def _kinds(rows: Sequence[Row]) -> list[tuple[str, int]]:
    return [(kind, len(cells)) for kind, cells in rows]
