"""What a terminal shows of the few controls that neuron-run writes: carriage return, line feed, erase to the end."""

from __future__ import annotations


def screen(written: str) -> list[str]:
    """The lines on the screen after this was written; a terminal that never scrolls and is as wide as it takes."""
    lines: list[list[str]] = [[]]
    row = column = position = 0
    while position < len(written):
        character = written[position]
        if written.startswith("\x1b[K", position):
            del lines[row][column:]
            position += 3
            continue
        position += 1
        if character == "\r":
            column = 0
        elif character == "\n":
            row += 1
            if row == len(lines):
                lines.append([])
        else:
            line = lines[row]
            line += " " * (column - len(line))
            line[column : column + 1] = character
            column += 1
    return ["".join(line) for line in lines]
