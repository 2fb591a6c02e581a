"""Quantities as people write them in filters: `20GB`, `5min`, `50TFLOPS`, `5%`, each for columns of its unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite

_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?"
_WHOLE = re.compile(rf"({_NUMBER})\s*([^\d\s.+-]*)", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zµ]+)\s*", re.ASCII)

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18}


def _with_prefixes(*units: str, step: float = 1000.0) -> dict[str, float]:
    return {prefix + unit: step**power for unit in units for power, prefix in enumerate(_PREFIXES)}


_BYTES = {"": 1.0, **_with_prefixes("", "b", "ib", step=1024.0)}
_SECONDS = {"": 1.0, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3} | {
    name: seconds
    for names, seconds in (
        (("s", "sec", "secs", "second", "seconds"), 1.0),
        (("m", "min", "mins", "minute", "minutes"), 60.0),
        (("h", "hour", "hours"), 3600.0),
        (("d", "day", "days"), 86400.0),
    )
    for name in names
}
_UNITS: dict[str, tuple[Mapping[str, float], str]] = {
    "ratio": ({"": 0.01, "%": 0.01}, "percent, such as 5 or 5%"),
    "bytes": (_BYTES, "bytes, such as 20GB or 512MB"),
    "seconds": (_SECONDS, "a time, such as 5ms, 30s or 5min"),
    "flops": (_with_prefixes("", "flops", "flop/s"), "FLOPS, such as 50TFLOPS or 50T"),
    "rate": ({**_PREFIXES, "/s": 1.0}, "a number a second, such as 5 or 2k"),
}
_COUNT = (_PREFIXES, "a number, such as 5 or 2k")


class InvalidQuantity(ValueError):
    """A text that is no value of a unit; the text says what one looks like."""


def parse_quantity(text: str, unit: str) -> float:
    """The value of a text in the unit's base; finite. InvalidQuantity for anything else.

    The units are ratio (written as percent), bytes (GB means GiB, as on the screen), seconds, flops, rate (a second)
    and "" for counts.
    """
    factors, example = _UNITS.get(unit, _COUNT)
    written = text.strip().casefold()
    found = _WHOLE.fullmatch(written)
    value = None
    if found is not None and found[2] in factors:
        value = float(found[1]) * factors[found[2]]
    elif unit == "seconds":
        value = _duration(written)
    if value is None or not isfinite(value):
        raise InvalidQuantity(f"give {example}")
    return value


def _duration(text: str) -> float | None:
    """One of several parts, such as `1h30m` or `2 m 5 s`, as the screen has them; None for anything else."""
    total, position = 0.0, 0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None or part[2] not in _SECONDS:
            return None
        total += float(part[1]) * _SECONDS[part[2]]
        position = part.end()
    return total if position else None
