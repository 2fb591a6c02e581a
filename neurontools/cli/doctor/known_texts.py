"""Decides which parts of a text are public: only those that the source of these tools contains, and plain numbers.

A support bundle may not contain secrets, and no pattern recognizes all secrets. Therefore a text is compared with the
messages in the source: constant parts stay, and every other part is replaced by its kind and length.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_PACKAGES = ("neurontools", "neurond")
_LONGEST_TEXT = 4096  # characters; a longer text is replaced as a whole
_DEEPEST = 4  # messages inside messages
_WORD = re.compile(r"[A-Za-z]{3,}")
_NUMBER = re.compile(r"[-+]?\d[\d.]{0,15}(?:[-, ]+\d{1,7}){0,63}(?: ?(?:[KMGT]?i?B|[num]?s|min|h|d|%|/s|MHz))?")
_LEADING_NUMBER = re.compile(r"\d{1,7}(?=\D)")
# A version with four parts could be an IPv4 address, unless it begins like those of the Neuron SDK.
VERSION = re.compile(
    r"(?:2\.\d{1,3}(?:\.\d{1,7}){0,2}|\d{1,4}(?:\.\d{1,6}){1,2})(?:\.?(?:a|b|rc|dev|post)\d{1,4})*(?:\+(?:cpu|cu\d{2,3}))?"
)
# Values of source expressions with these names are numbers and never texts of users.
_NUMERIC_EXPRESSION = re.compile(
    r"pid|index|indices|count|seconds|bytes|ratio|total|percent|\blen\(|ranges_text|devices_text|duration_text"
)
_SEPARATORS = re.compile(r"(: |; |, | \(|\)$)")


@dataclass(frozen=True, slots=True)
class _Message:
    """A message of the source. `constants` has one element more than `expressions`, which stand between them.

    Expressions without a constant between them count as one, and " + " joins them.
    """

    constants: tuple[str, ...]
    expressions: tuple[str, ...]

    @property
    def constant_length(self) -> int:
        return sum(map(len, self.constants))

    def values(self, text: str) -> list[str] | None:
        """Returns the values of the expressions in a text of this message. None if the text is not of this message."""
        first, *middle, last = self.constants
        if not text.startswith(first) or not text.endswith(last) or len(first) + len(last) > len(text):
            return None
        found, start, end = [], len(first), len(text) - len(last)
        for constant in middle:
            position = text.find(constant, start, end)
            while position >= 0 and _splits_word(text, position, position + len(constant)):
                position = text.find(constant, position + 1, end)
            if position < 0:
                return None
            found.append(text[start:position])
            start = position + len(constant)
        if _splits_word(text, 0, len(first)) or _splits_word(text, end, len(text)):
            return None
        return [*found, text[start:end]]


def _splits_word(text: str, start: int, end: int) -> bool:
    """Returns whether a part of a text begins or ends inside a word or number."""
    return any(text[at - 1 : at].isalnum() and text[at : at + 1].isalnum() for at in (start, end) if 0 < at < len(text))


class KnownTexts:
    """The messages and words in the source of the tools, and `more_words`. Numbers the texts that it replaces."""

    def __init__(self, more_words: Iterable[str] = ()) -> None:
        words, self._messages = _read_source()
        self._words = words | set(more_words)
        self._numbers: dict[tuple[str, str], int] = {}

    def replacement(self, text: str, kind: str) -> str:
        """Returns kind and length of a text. The number in it is the same for equal texts of a kind."""
        if not text:
            return ""
        number = self._numbers.setdefault((kind, text), len(self._numbers) + 1)
        return f"<{kind}-{number}, {len(text)} characters>"

    def public(self, text: str) -> str:
        """Returns a text in which everything that the source does not contain is replaced by kind and length."""
        if len(text) > _LONGEST_TEXT:
            return self.replacement(text, "text")
        return "\n".join([self._public(line, "", 0) for line in text.split("\n")])

    def _public(self, text: str, expression: str, depth: int) -> str:
        if not text.strip() or text in self._words:
            return text
        first, _, others = expression.partition(" + ")
        if _NUMERIC_EXPRESSION.search(first):
            if _NUMBER.fullmatch(text):
                return text
            if others and (number := _LEADING_NUMBER.match(text)):
                return number[0] + self._public(text[number.end() :], others, depth)
        elif "version" in first and VERSION.fullmatch(text):
            return text
        if depth < _DEEPEST:
            for message in self._messages:
                values = message.values(text)
                if values is not None:
                    return self._filled(message, values, depth)
            parts = _SEPARATORS.split(text)
            if len(parts) > 1:
                return "".join(
                    part if position % 2 else self._public_part(part, depth) for position, part in enumerate(parts)
                )
        return self.replacement(text, _kind(text))

    def _public_part(self, part: str, depth: int) -> str:
        """Returns a part between separators. There, only names of findings, variables and commands are public words."""
        if part in self._words and len(part.split()) < 2 and not part.isupper() and not part.startswith("neuron"):
            return self.replacement(part, _kind(part))
        return self._public(part, "", depth + 1)

    def _filled(self, message: _Message, values: list[str], depth: int) -> str:
        parts = [message.constants[0]]
        for expression, value, constant in zip(message.expressions, values, message.constants[1:], strict=True):
            parts += [self._public(value, expression, depth + 1), constant]
        return "".join(parts)


@cache
def _read_source() -> tuple[frozenset[str], tuple[_Message, ...]]:
    """Returns the constants in the source, and its messages, longest first. Takes about two seconds of CPU time."""
    words: set[str] = set()
    messages: set[_Message] = set()
    for path in _source_files():
        documentation = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):  # visits a node before its children
            if isinstance(node, ast.Expr):
                documentation.add(id(node.value))
            elif isinstance(node, ast.JoinedStr):
                messages |= _message(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
                words.add(node.value)
    return frozenset(words), tuple(sorted(messages, key=lambda each: (-each.constant_length, each.constants)))


def _message(node: ast.JoinedStr) -> set[_Message]:
    """Returns the message of an f-string. Empty without a value or a word, because it would match nearly every text."""
    constants: list[str] = [""]
    expressions: list[str] = []
    for part in node.values:
        if isinstance(part, ast.FormattedValue) and expressions and not constants[-1]:
            expressions[-1] += f" + {_expression(part)}"
        elif isinstance(part, ast.FormattedValue):
            expressions.append(_expression(part))
            constants.append("")
        elif isinstance(part, ast.Constant):
            constants[-1] += str(part.value)
    has_words = any(map(_WORD.search, constants))
    return {_Message(tuple(constants), tuple(expressions))} if expressions and has_words else set()


def _source_files() -> Iterator[Path]:
    for name in _PACKAGES:
        spec = find_spec(name)
        for directory in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield from sorted(Path(directory).rglob("*.py"))


def _expression(part: ast.FormattedValue) -> str:
    """Returns the source of an expression. A numeric format, as in `{value:g}`, counts as a number."""
    numeric = part.format_spec is not None and ast.unparse(part.format_spec).strip("f'\"")[-1:] in ("g", "d", "f", "%")
    return ("count " if numeric else "") + ast.unparse(part.value)


def _kind(text: str) -> str:
    if "://" in text:
        return "url"
    if text.startswith(("/", "~")):
        return "path"
    return "number" if text.isdecimal() else "text"
