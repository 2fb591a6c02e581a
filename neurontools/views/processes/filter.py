"""Filters of the process list: `user=root util<5`, words and comparisons that all have to hold."""

from __future__ import annotations

from collections.abc import Callable

from neurontools.views.drawing.figures import ProcessFigures
from neurontools.views.processes.columns import BY_KEY, ProcessColumn

_OPERATORS = ("<=", ">=", "!=", "<", ">", "=", "~")
_MULTIPLES = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

Test = Callable[[ProcessFigures], bool]


class InvalidFilter(ValueError):
    """A filter that can't be understood; the text says why."""


def parse_filter(text: str) -> Test:
    """Whether a process passes; InvalidFilter when the text names no column or a value is none of its unit.

    A part is a word (found in tag, command, user or PID) or `column operator value` without spaces, with the operators
    = != < > <= >= and ~ for "contains". Percent, bytes (8G) and times (5ms) are written as on the screen.
    """
    tests = [_parse_part(part) for part in text.split()]
    return lambda figures: all(test(figures) for test in tests)


def _parse_part(part: str) -> Test:
    found = [(part.index(operator), -len(operator), operator) for operator in _OPERATORS if operator in part]
    if not found:
        return _word(part.casefold())
    position, _, operator = min(found)
    key, value = part[:position].casefold(), part[position + len(operator) :]
    column = BY_KEY.get(key)
    if column is None:
        raise InvalidFilter(f"no column {key or part!r}; there are {', '.join(BY_KEY)}")
    if not value:
        raise InvalidFilter(f"{key}{operator} needs a value")
    if operator == "~":
        wanted = value.casefold()
        return lambda figures: wanted in str(column.read(figures) or "").casefold()
    if column.is_text:
        return _of_text(column, operator, value.casefold())
    return _of_number(column, operator, _number(column, value))


def _word(word: str) -> Test:
    def test(figures: ProcessFigures) -> bool:
        process = figures.process
        return any(
            word in text.casefold() for text in (process.tag, process.command, process.user or "", str(process.pid))
        )

    return test


def _of_text(column: ProcessColumn, operator: str, value: str) -> Test:
    if operator == "=":
        return lambda figures: str(column.read(figures) or "").casefold() == value
    if operator == "!=":
        return lambda figures: str(column.read(figures) or "").casefold() != value
    raise InvalidFilter(f"{column.key} is text: use = != or ~")


def _of_number(column: ProcessColumn, operator: str, value: float) -> Test:
    compare: dict[str, Callable[[float], bool]] = {
        "=": lambda known: known == value,
        "!=": lambda known: known != value,
        "<": lambda known: known < value,
        ">": lambda known: known > value,
        "<=": lambda known: known <= value,
        ">=": lambda known: known >= value,
    }
    holds = compare[operator]

    def test(figures: ProcessFigures) -> bool:
        known = column.read(figures)
        return isinstance(known, (int, float)) and holds(known)

    return test


def _number(column: ProcessColumn, text: str) -> float:
    bare = text.casefold().removesuffix("%") if column.unit == "ratio" else text.casefold()
    factor = 1.0
    if column.unit == "ratio":
        factor = 0.01
    elif column.unit == "seconds":
        unit = bare.lstrip("0123456789.+-e")
        if unit:
            factor = _SECONDS.get(unit, 0.0)
            bare = bare[: -len(unit)]
    else:
        step = 1024.0 if column.unit == "bytes" else 1000.0
        bare = bare.removesuffix("b").removesuffix("i") if column.unit == "bytes" else bare
        if bare and bare[-1] in _MULTIPLES:
            factor = step ** _MULTIPLES[bare[-1]]
            bare = bare[:-1]
    try:
        if not factor:
            raise ValueError
        return float(bare) * factor
    except ValueError:
        raise InvalidFilter(f"{text!r} is no value of {column.key}") from None
