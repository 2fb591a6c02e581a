"""A small terminal emulator: just what neuron-top, Textual, neuron-run, btop and htop write."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(
    r"\x1b(?:\[([0-?]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[()*+].|[@-Z\\-_=>78])"
)
_MOVES = {"A": (-1, 0), "B": (1, 0), "C": (0, 1), "D": (0, -1)}
"""Rows and columns by which a cursor sequence moves, by the last character of the sequence."""


class TerminalScreen:
    """A screen of so many cells; `feed` what is written to it. Wide characters are not known."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.rows = [[" "] * width for _ in range(height)]
        self._row = self._column = 0
        self._rest = ""

    def feed(self, text: str) -> None:
        text = self._rest + text
        self._rest = ""
        position = 0
        while position < len(text):
            character = text[position]
            if character == "\x1b":
                match = _SEQUENCE.match(text, position)
                if match is None:
                    self._rest = text[position:]
                    return
                self._sequence(match[1] or "", match[2] or "")
                position = match.end()
                continue
            position += 1
            if character == "\n":
                self._row += 1
            elif character == "\r":
                self._column = 0
            elif character >= " ":
                if 0 <= self._row < self.height and 0 <= self._column < self.width:
                    self.rows[self._row][self._column] = character
                self._column += 1
        if text.endswith("\n"):
            self._column = 0

    def _sequence(self, parameters: str, final: str) -> None:
        if final in ("H", "f"):
            numbers = [max(1, int(part or 1)) for part in (parameters or "1;1").split(";")]
            self._row, self._column = numbers[0] - 1, (numbers[1] if len(numbers) > 1 else 1) - 1
        elif final in ("G", "d"):
            number = max(1, int(parameters or 1)) - 1
            self._row, self._column = (number, self._column) if final == "d" else (self._row, number)
        elif final in _MOVES:
            rows, columns = _MOVES[final]
            count = max(1, int(parameters or 1))
            self._row, self._column = max(0, self._row + rows * count), max(0, self._column + columns * count)
        elif final == "J" or (final == "h" and parameters == "?1049"):
            self.rows = [[" "] * self.width for _ in range(self.height)]
        elif final == "K" and self._row < self.height:
            self.rows[self._row][self._column :] = [" "] * (self.width - self._column)

    @property
    def filled_cells(self) -> int:
        """The number of cells that do not hold a space."""
        return sum(len(row) - row.count(" ") for row in self.rows)

    @property
    def text(self) -> str:
        return "\n".join("".join(row).rstrip() for row in self.rows)


def screen(written: str) -> list[str]:
    """The lines on a wide screen, which never scrolls, after this was written."""
    shown = TerminalScreen(500, written.count("\n") + 1)
    shown.feed(written)
    return shown.text.split("\n")
