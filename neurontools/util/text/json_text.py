"""JSON that a terminal can be shown: ASCII alone, and no control character in it, with the data as it was."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

_COMPACT = (",", ":")


def json_text(value: Any, *, indent: int | None = None) -> str:
    """A document as JSON, compact unless indented; ValueError for a number that JSON has not (NaN).

    Direction marks and the like are escaped with all that isn't ASCII, C0 as JSON wants it, and DEL besides.
    """
    text = _encoder(indent).encode(value)
    return text.replace("\x7f", "\\u007f") if "\x7f" in text else text


@cache
def _encoder(indent: int | None) -> json.JSONEncoder:
    return json.JSONEncoder(
        indent=indent, separators=None if indent else _COMPACT, check_circular=False, allow_nan=False
    )
