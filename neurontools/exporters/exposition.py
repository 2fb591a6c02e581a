"""The two text formats that Prometheus scrapes: its own (0.0.4) and OpenMetrics 1.0.

By hand and not by prometheus_client, which keeps an object for every series and takes many times as long.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_SURROGATES = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")


class Kind(StrEnum):
    """What a family of samples is."""

    GAUGE = "gauge"
    COUNTER = "counter"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Definition:
    """A family; `name` without `_total` and `_info`, which belong to the samples."""

    name: str
    kind: Kind
    help: str

    @property
    def sample_name(self) -> str:
        """The name of its samples."""
        return self.name + _SUFFIXES[self.kind]


_SUFFIXES = {Kind.GAUGE: "", Kind.COUNTER: "_total", Kind.INFO: "_info"}

Sample = tuple[str, float]
"""The text of the labels with its braces, as `label_text` writes it, and the value."""


@dataclass(frozen=True, slots=True)
class Family:
    """A family with its samples; `created` tells for counters since when they count, Unix time in seconds."""

    definition: Definition
    samples: Iterable[Sample]
    created: Iterable[Sample] = ()


def label_text(labels: Iterable[tuple[str, str]]) -> str:
    """Labels as both formats write them, sorted by name: {a="1",b="x"}; "" for none."""
    parts = [f'{name}="{escaped(value)}"' for name, value in sorted(labels)]
    return f"{{{','.join(parts)}}}" if parts else ""


def escaped(value: str) -> str:
    """A label value with what the formats want escaped; a lone surrogate, which has no UTF-8, becomes U+FFFD."""
    if value.isascii() and value.isalnum():
        return value
    return value.translate(_ESCAPES).translate(_SURROGATES)


def text_format(families: Iterable[Family]) -> bytes:
    """The families in Prometheus's text format, families without samples left out."""
    lines: list[str] = []
    for family in families:
        definition, name = family.definition, family.definition.sample_name
        kind = "gauge" if definition.kind is Kind.INFO else definition.kind.value
        _add(lines, name, (f"# HELP {name} {definition.help}", f"# TYPE {name} {kind}"), family.samples)
        if family.created:
            created = f"{definition.name}_created"
            head = (f"# HELP {created} {definition.help}", f"# TYPE {created} gauge")
            _add(lines, created, head, family.created)
    lines.append("")
    return "\n".join(lines).encode()


def openmetrics_format(families: Iterable[Family]) -> bytes:
    """The families in the OpenMetrics text format, families without samples left out."""
    lines: list[str] = []
    for family in families:
        definition = family.definition
        head = (f"# HELP {definition.name} {definition.help}", f"# TYPE {definition.name} {definition.kind.value}")
        name = definition.sample_name
        if family.created:  # each counter with its own, as the format wants them
            lines.extend(head)
            for sample, created in zip(family.samples, family.created, strict=True):
                _add(lines, name, (), (sample,))
                _add(lines, f"{definition.name}_created", (), (created,))
        else:
            _add(lines, name, head, family.samples)
    lines.append("# EOF\n")
    return "\n".join(lines).encode()


def _add(lines: list[str], name: str, head: tuple[str, ...], samples: Iterable[Sample]) -> None:
    if not isinstance(samples, Sequence):
        samples = list(samples)
    if math.isfinite(sum([value for _, value in samples])):
        written = [f"{name}{labels} {value!r}" for labels, value in samples]
    else:
        written = [f"{name}{labels} {_number(value)}" for labels, value in samples]
    if written:
        lines.extend(head)
        lines.extend(written)


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def wants_openmetrics(accept: str) -> bool:
    """Whether an HTTP Accept header asks for OpenMetrics 1.0."""
    return any(_is_openmetrics(part) for part in accept.split(","))


def _is_openmetrics(part: str) -> bool:
    media, *parameters = (piece.strip() for piece in part.split(";"))
    versions = [parameter.partition("=")[2] for parameter in parameters if parameter.startswith("version=")]
    refused = any(parameter in ("q=0", "q=0.0") for parameter in parameters)
    return media == "application/openmetrics-text" and not refused and versions in ([], ["1.0.0"], ["0.0.1"])
