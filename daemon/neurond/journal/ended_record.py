"""An ended process as a line of JSON, and back: whatever a file holds."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from typing import Any, NoReturn

from google.protobuf.message import EncodeError

from neurond.journal.line_file import MOST_LINE_BYTES
from neurontools.model import EndedProcess, ErrorCounters, ExecutionCounters
from neurontools.model.snapshot import LATEST_UNIX_SECONDS
from neurontools.rpc.convert import from_message, to_message
from neurontools.util.formats import json_text

_NAMES = frozenset(field.name for field in fields(EndedProcess))


def to_line(process: EndedProcess) -> bytes:
    """The line, its end included; ValueError for one that is too long or has a number that JSON has not."""
    line = json_text(asdict(process)).encode("ascii") + b"\n"
    if len(line) > MOST_LINE_BYTES:
        raise ValueError(f"a record of {len(line)} bytes is too long")
    return line


def from_line(line: bytes) -> EndedProcess:
    """The process of a line, with or without its end; ValueError where it is none that could be sent and shown.

    Keys of a later version are passed over.
    """
    try:
        told = json.loads(line, parse_constant=_refuse)
        if not isinstance(told, dict):
            raise ValueError("no object")
        values: dict[str, Any] = {name: value for name, value in told.items() if name in _NAMES}
        for name, kind in (("executions", ExecutionCounters), ("errors", ErrorCounters)):
            if values.get(name) is not None:
                values[name] = kind(**values[name])
        for name in ("device_indices", "inferred_fields"):
            values[name] = tuple(values.get(name, ()))
        process = from_message(EndedProcess, to_message(EndedProcess(**values)))
    except (TypeError, KeyError, AttributeError, OverflowError, RecursionError, EncodeError) as error:
        raise ValueError(f"no ended process: {error}") from None
    if not all(map(_is_plain, asdict(process).values())):
        raise ValueError("a number that is none")
    if not 0 <= process.began_at_unix_seconds <= process.ended_at_unix_seconds <= LATEST_UNIX_SECONDS:
        raise ValueError("a time that can't be shown")
    return process


def _is_plain(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")
