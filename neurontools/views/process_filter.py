"""The filter language of the process list, for example `user=root (util<5 or not tag~mlp)`.

Filters come from the key `/`, the option `--filter` and the search.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import isfinite

from neurontools.views.drawing.figures import ProcessFigures
from neurontools.views.process_table import BY_KEY, WHERE, ProcessColumn

MOST_CHARACTERS = 1000
_MAX_DEPTH = 20  # maximum number of nested parentheses
_OPERATORS = ("<=", ">=", "!=", "<", ">", "=", "~")
_QUOTES = "\"'"
ProcessTest = Callable[[ProcessFigures], bool]
_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?"
_QUANTITY = re.compile(rf"({_NUMBER})\s*([^\d\s.+-]*)", re.ASCII)
# casefold() makes the micro sign (U+00B5) the Greek letter mu (U+03BC).
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z\u03bc]+)\s*", re.ASCII)
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18}
_SECONDS = {"": 1.0, "ns": 1e-9, "us": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3} | {
    name: seconds
    for names, seconds in (
        (("s", "sec", "secs", "second", "seconds"), 1.0),
        (("m", "min", "mins", "minute", "minutes"), 60.0),
        (("h", "hour", "hours"), 3600.0),
        (("d", "day", "days"), 86400.0),
    )
    for name in names
}
_COUNT = (_PREFIXES, "a number, such as 5 or 2k")


class InvalidFilter(ValueError):
    """A filter is invalid. The message is one line."""


def parse_filter(text: str) -> ProcessTest:
    """Parses a filter, or raises InvalidFilter. Returns a function that tests whether a process matches.

    A term is a word, or `column operator value`. A word matches if tag, command, user, PID, pod or job contains it. The
    operators are = != < > <= >= and ~ (contains). Adjacent terms are joined by `and`; `not` binds tightest, then `and`,
    then `or`; parentheses group. Quotes protect special characters; a backslash escapes a quote. A column of indices
    matches if any index does: `cores=63` selects the process that holds core 63. An unknown number matches no
    comparison except ~; unknown text and unknown indices match !=.
    """
    if len(text) > MOST_CHARACTERS:
        raise InvalidFilter(f"longer than {MOST_CHARACTERS} characters")
    return _Parser(text).parse()


def quote_value(text: str) -> str:
    """Quotes a text, so that a filter can contain it as a value."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def join_filters(*filters: str) -> str:
    """Combines filters to one that matches if all of them match. Ignores empty filters."""
    given = [text for text in filters if text.strip()]
    return " ".join(f"({text})" for text in given) if len(given) > 1 else "".join(given)


class _Parser:
    """A recursive-descent parser of filters."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._depth = 0

    def parse(self) -> ProcessTest:
        test = self._parse_or()
        if self._next():
            raise InvalidFilter(f"unmatched ) {self._position_text()}")
        return test

    def _parse_or(self) -> ProcessTest:
        tests = [self._parse_and()]
        while self._accept("or"):
            tests.append(self._parse_and(after="or"))
        return tests[0] if len(tests) == 1 else lambda figures: any(test(figures) for test in tests)

    def _parse_and(self, *, after: str = "") -> ProcessTest:
        """Parses terms joined by `and`, up to the next `or` or closing parenthesis. An empty filter matches all."""
        tests: list[ProcessTest] = []
        while True:
            if self._is_next("and"):
                if not tests or after == "and":
                    raise InvalidFilter(f"a term is missing before the 'and' {self._position_text()}")
                self._accept(after := "and")
            if not self._next() or self._next() == ")" or self._is_next("or"):
                break
            tests.append(self._term())
            after = ""
        if after or (not tests and (self._next() or self._depth)):
            raise InvalidFilter(
                f"a term is missing after {after!r}" if after else f"a term is missing {self._position_text()}"
            )
        return tests[0] if len(tests) == 1 else lambda figures: all(test(figures) for test in tests)

    def _term(self) -> ProcessTest:
        is_negated = False
        while self._accept("not"):
            is_negated = not is_negated
            if not self._next() or self._next() == ")":
                raise InvalidFilter("a term is missing after 'not'")
        test = self._group() if self._next() == "(" else self._comparison_or_word()
        return (lambda figures: not test(figures)) if is_negated else test

    def _group(self) -> ProcessTest:
        place = self._position_text()
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise InvalidFilter(f"more than {_MAX_DEPTH} nested parentheses")
        self._position += 1
        test = self._parse_or()
        if self._next() != ")":
            raise InvalidFilter(f"the ( {place} is not closed")
        self._position += 1
        self._depth -= 1
        return test

    def _comparison_or_word(self) -> ProcessTest:
        start = self._position
        is_quoted = self._next() in _QUOTES
        name = self._quoted() if is_quoted else self._parse_word(is_value=False)
        operator = "" if is_quoted else self._operator()
        if not operator:
            if not name and not is_quoted:
                raise InvalidFilter(f"a term is missing {self._position_text()}")
            return _word_test(name.casefold())
        key = name.casefold()
        column = BY_KEY.get(key)
        if column is None:
            part = self._text[start : start + 40].split()[0]
            raise InvalidFilter(
                f"unknown column {key or part!r}; columns are {', '.join(BY_KEY)} (quote it to search for the word)"
            )
        return _comparison_test(column, operator, self._value(f"{key}{operator}"))

    def _value(self, before: str) -> str:
        following = self._next()
        value = self._quoted() if following and following in _QUOTES else self._parse_word(is_value=True)
        if not value:
            raise InvalidFilter(f"{before} needs a value")
        return value

    def _operator(self) -> str:
        """Skips spaces, then consumes and returns a comparison operator; returns "" if none follows."""
        self._next()
        for operator in _OPERATORS:
            if self._text.startswith(operator, self._position):
                self._position += len(operator)
                return operator
        return ""

    def _parse_word(self, *, is_value: bool) -> str:
        """Consumes an unquoted word up to a space or unmatched closing parenthesis. A name also ends at an operator."""
        start, opened = self._position, 0
        while self._position < len(self._text):
            character = self._text[self._position]
            if character.isspace() or (not is_value and self._text.startswith(_OPERATORS, self._position)):
                break
            opened += (character == "(") - (character == ")")
            if opened < 0:
                break
            self._position += 1
        return self._text[start : self._position]

    def _quoted(self) -> str:
        place, quote = self._position_text(), self._text[self._position]
        self._position += 1
        parts: list[str] = []
        while self._position < len(self._text):
            character = self._text[self._position]
            self._position += 1
            if character == quote:
                return "".join(parts)
            if character == "\\" and self._text[self._position : self._position + 1] in ("\\", '"', "'"):
                character = self._text[self._position]
                self._position += 1
            parts.append(character)
        raise InvalidFilter(f"the quote {place} is not closed")

    def _next(self) -> str:
        """Skips spaces and returns the next character; "" at the end."""
        while self._position < len(self._text) and self._text[self._position].isspace():
            self._position += 1
        return self._text[self._position : self._position + 1]

    def _is_next(self, keyword: str) -> bool:
        """Returns whether a keyword such as "and" follows as a whole word, not as the column of a comparison."""
        self._next()
        end = self._position + len(keyword)
        if self._text[self._position : end].casefold() != keyword:
            return False
        return not self._text[end:] or self._text[end].isspace() or self._text[end] in f"(){_QUOTES}"

    def _accept(self, keyword: str) -> bool:
        if not self._is_next(keyword):
            return False
        self._position += len(keyword)
        return True

    def _position_text(self) -> str:
        return f"at character {self._position + 1}"


def _word_test(word: str) -> ProcessTest:
    def test(figures: ProcessFigures) -> bool:
        process = figures.process
        place = WHERE.read(figures)
        return any(
            word in str(text or "").casefold()
            for text in (process.tag, process.command, process.user, str(process.pid), place, process.job_name)
        )

    return test


def _comparison_test(column: ProcessColumn, operator: str, value: str) -> ProcessTest:
    if operator == "~":
        operand = value.casefold()
        # ~ compares numbers as the screen shows them, not in base units.
        read = column.read if column.is_text else column.text
        return lambda figures: operand in str(read(figures) or "").casefold()
    if column.is_text:
        return _text_test(column, operator, value.casefold())
    if column.members is not None:
        return _members_test(column.key, column.members, operator, value)
    try:
        return _number_test(column, operator, parse_quantity(value, column.unit))
    except InvalidQuantity as error:
        raise InvalidFilter(f"{value[:40]!r} is not a value of {column.key}; {error}") from None


def _text_test(column: ProcessColumn, operator: str, value: str) -> ProcessTest:
    if operator == "=":
        return lambda figures: str(column.read(figures) or "").casefold() == value
    if operator == "!=":
        return lambda figures: str(column.read(figures) or "").casefold() != value
    raise InvalidFilter(f"{column.key} is text: use = != or ~")


_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "=": lambda actual, value: actual == value,
    "!=": lambda actual, value: actual != value,
    "<": lambda actual, value: actual < value,
    ">": lambda actual, value: actual > value,
    "<=": lambda actual, value: actual <= value,
    ">=": lambda actual, value: actual >= value,
}


def _number_test(column: ProcessColumn, operator: str, value: float) -> ProcessTest:
    compare = _COMPARE[operator]

    def test(figures: ProcessFigures) -> bool:
        actual = column.read(figures)
        return isinstance(actual, (int, float)) and compare(actual, value)

    return test


def _members_test(
    key: str, members: Callable[[ProcessFigures], tuple[int, ...]], operator: str, value: str
) -> ProcessTest:
    """Returns the test for a column of indices. `!=` must hold for all indices; any other operator for one index."""
    indices = _parse_indices(key, value)
    if operator == "=":
        return lambda figures: any(low <= index <= high for index in members(figures) for low, high in indices)
    if operator == "!=":
        return lambda figures: not any(low <= index <= high for index in members(figures) for low, high in indices)
    if len(indices) != 1 or indices[0][0] != indices[0][1]:
        raise InvalidFilter(f"{key}{operator} takes one index; = and != take several, such as {key}=0-3,8")
    compare, index = _COMPARE[operator], indices[0][0]
    return lambda figures: any(compare(own, index) for own in members(figures))


def _parse_indices(key: str, text: str) -> list[tuple[int, int]]:
    found = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        bounds = (low, high) if dash else (low, low)
        if not all(bound.isascii() and bound.isdigit() and len(bound) <= 5 for bound in bounds):
            raise InvalidFilter(f"{text[:40]!r} is not a value of {key}; give indices, such as 63 or 0-3,8")
        first, last = (int(bound) for bound in bounds)
        if first > last:
            raise InvalidFilter(
                f"{part.strip()} is not a range of {key}; give the lower index first, as {last}-{first}"
            )
        found.append((first, last))
    return found


def _with_prefixes(*units: str, step: float = 1000.0) -> dict[str, float]:
    return {prefix + unit: step**power for unit in units for power, prefix in enumerate(_PREFIXES)}


_BYTES = {"": 1.0, **_with_prefixes("", "b", "ib", step=1024.0)}


_UNITS: dict[str, tuple[Mapping[str, float], str]] = {
    "ratio": ({"": 0.01, "%": 0.01}, "percent, such as 5 or 5%"),
    "bytes": (_BYTES, "bytes, such as 20GB or 512MB"),
    "seconds": (_SECONDS, "a time, such as 5ms, 30s or 5min"),
    "flops": (_with_prefixes("", "flops", "flop/s"), "FLOPS, such as 50TFLOPS or 50T"),
    "rate": ({**_PREFIXES, "/s": 1.0}, "a number a second, such as 5 or 2k"),
}


class InvalidQuantity(ValueError):
    """A text is not a valid quantity of the required unit. The message shows an example."""


def parse_quantity(text: str, unit: str) -> float:
    """Parses a quantity, or raises InvalidQuantity. Returns a finite number in base units.

    `unit` is "ratio" (written in percent), "bytes" (GB means GiB, as on the screen), "seconds", "flops", "rate" (per
    second) or "" for counts.
    """
    factors, example = _UNITS.get(unit, _COUNT)
    written = text.strip().casefold()
    found = _QUANTITY.fullmatch(written)
    value = None
    if found is not None and found[2] in factors:
        value = float(found[1]) * factors[found[2]]
    elif unit == "seconds":
        value = _parse_duration(written)
    if value is None or not isfinite(value):
        raise InvalidQuantity(f"give {example}")
    return value


def _parse_duration(text: str) -> float | None:
    """Parses a duration such as `1h30m` or `2 m 5 s` to seconds; returns None for other texts."""
    total, position = 0.0, 0
    while position < len(text):
        part = _DURATION_PART.match(text, position)
        if part is None or part[2] not in _SECONDS:
            return None
        total += float(part[1]) * _SECONDS[part[2]]
        position = part.end()
    return total if position else None
