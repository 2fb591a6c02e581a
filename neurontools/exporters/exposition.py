"""The two text formats that Prometheus scrapes: its own (0.0.4) and OpenMetrics 1.0.

By hand and not by prometheus_client, which keeps an object for every series and takes many times as long.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Protocol

from neurontools.net.http_access import Handler
from neurontools.net.http_messages import CompressedPart, CompressibleDocument, HttpRequest, HttpResponse
from neurontools.util.terminal import escape_controls

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_END = CompressedPart(b"# EOF\n")
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_SURROGATES = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")


class MetricKind(StrEnum):
    """What a family of samples is."""

    GAUGE = "gauge"
    COUNTER = "counter"
    INFO = "info"


@dataclass(frozen=True, slots=True, eq=False)
class FamilyDefinition:
    """A family; `name` without `_total` and `_info`, which belong to the samples. Each is made once: it is a key."""

    name: str
    kind: MetricKind
    help: str

    @property
    def sample_name(self) -> str:
        """The name of its samples."""
        return self.name + _SUFFIXES[self.kind]


_SUFFIXES = {MetricKind.GAUGE: "", MetricKind.COUNTER: "_total", MetricKind.INFO: "_info"}

Sample = tuple[str, float]
"""The text of the labels with its braces, as `label_text` writes it, and the value."""


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """A family with its samples; `created` tells for counters since when they count, Unix time in seconds."""

    definition: FamilyDefinition
    samples: Sequence[Sample]
    created: Sequence[Sample] = ()


def label_text(labels: Iterable[tuple[str, str]]) -> str:
    """Labels as both formats write them, sorted by name: {a="1",b="x"}; "" for none."""
    parts = [f'{name}="{escape_label_value(value)}"' for name, value in sorted(labels)]
    return f"{{{','.join(parts)}}}" if parts else ""


def escape_label_value(value: str) -> str:
    """A label value with what the formats want escaped; a lone surrogate, which has no UTF-8, becomes U+FFFD.

    Control characters but line ends, which the formats escape, are made visible: people read metrics in terminals.
    """
    if value.isascii() and value.isalnum():
        return value
    if not value.isprintable():
        value = "\n".join(map(escape_controls, value.translate(_SURROGATES).split("\n")))
    return value.translate(_ESCAPES)


def encode_text(families: Iterable[MetricFamily]) -> bytes:
    """The families in Prometheus's text format, families without samples left out."""
    return Exposition(openmetrics=False).text(families)


def encode_openmetrics(families: Iterable[MetricFamily]) -> bytes:
    """The families in the OpenMetrics text format, families without samples left out."""
    return Exposition(openmetrics=True).text(families)


class Exposition:
    """Scrape after scrape of one exporter in one format; a family that is as it was is not written anew."""

    def __init__(self, *, openmetrics: bool) -> None:
        self._openmetrics = openmetrics
        self._written: dict[FamilyDefinition, tuple[MetricFamily, CompressedPart]] = {}

    def document(self, families: Iterable[MetricFamily]) -> CompressibleDocument:
        """The families, those without samples left out; a family is a part, the same for as long as it is as it was."""
        write = _openmetrics_family if self._openmetrics else _text_family
        written: dict[FamilyDefinition, tuple[MetricFamily, CompressedPart]] = {}
        for family in families if self._openmetrics else _with_created_apart(families):
            known = self._written.get(family.definition)
            if known is None or known[0] != family:
                known = (family, CompressedPart(write(family).encode()))
            written[family.definition] = known
        self._written = written
        parts = [part for _, part in written.values() if part.content]
        return CompressibleDocument([*parts, _END] if self._openmetrics else parts)

    def text(self, families: Iterable[MetricFamily]) -> bytes:
        """The families, those without samples left out."""
        return self.document(families).content


def _with_created_apart(families: Iterable[MetricFamily]) -> Iterator[MetricFamily]:
    """Families as Prometheus's own format has them: when a counter was created is a gauge beside it."""
    for family in families:
        if family.created:
            yield MetricFamily(family.definition, family.samples)
            yield MetricFamily(_created(family.definition), family.created)
        else:
            yield family


@cache
def _created(definition: FamilyDefinition) -> FamilyDefinition:
    return FamilyDefinition(f"{definition.name}_created", MetricKind.GAUGE, definition.help)


def _text_family(family: MetricFamily) -> str:
    definition, name = family.definition, family.definition.sample_name
    kind = "gauge" if definition.kind is MetricKind.INFO else definition.kind.value
    return _block(f"# HELP {name} {definition.help}\n# TYPE {name} {kind}", _lines(name, family.samples))


def _openmetrics_family(family: MetricFamily) -> str:
    definition = family.definition
    lines = _lines(definition.sample_name, family.samples)
    if family.created:  # each counter with its own, as the format wants them
        created = _lines(f"{definition.name}_created", family.created)
        lines = [line for pair in zip(lines, created, strict=True) for line in pair]
    return _block(
        f"# HELP {definition.name} {definition.help}\n# TYPE {definition.name} {definition.kind.value}", lines
    )


def _block(head: str, lines: list[str]) -> str:
    return "\n".join((head, *lines, "")) if lines else ""


def _lines(name: str, samples: Sequence[Sample]) -> list[str]:
    if math.isfinite(sum([value for _, value in samples])):
        return [f"{name}{labels} {value!r}" for labels, value in samples]
    return [f"{name}{labels} {_number(value)}" for labels, value in samples]


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "-Inf" if value == -math.inf else "+Inf"


def wants_openmetrics(accept: str) -> bool:
    """Whether an HTTP Accept header asks for OpenMetrics 1.0."""
    return any(_is_openmetrics(part) for part in accept.split(","))


def _is_openmetrics(part: str) -> bool:
    media, *parameters = (piece.strip() for piece in part.split(";"))
    versions = [parameter.partition("=")[2] for parameter in parameters if parameter.startswith("version=")]
    refused = any(parameter in ("q=0", "q=0.0") for parameter in parameters)
    return media == "application/openmetrics-text" and not refused and versions in ([], ["1.0.0"], ["0.0.1"])


_MOST = 2048  # above what one host has of a kind; a bound for processes that come and go for months


class LabelSetTexts:
    """The texts of label sets with the same names, by their values."""

    def __init__(self, base: tuple[tuple[str, str], ...], names: tuple[str, ...]) -> None:
        self._base = base
        self._names = names
        self._texts: dict[tuple[str | int, ...], str] = {}

    def __call__(self, *values: str | int) -> str:
        """The text of these values, in the order of the names."""
        text = self._texts.get(values)
        if text is None:
            if len(self._texts) >= _MOST:
                self._texts.clear()
            labels = zip(self._names, map(str, values), strict=True)
            text = self._texts[values] = label_text((*self._base, *labels))
        return text


class LabelRowTexts:
    """The texts of label sets that differ in the last label, which has the same few values in each of them."""

    def __init__(self, base: tuple[tuple[str, str], ...], names: tuple[str, ...], last: tuple[str, ...]) -> None:
        self._base = base
        self._names = names
        self._last = last
        self._rows: dict[tuple[str | int, ...], tuple[str, ...]] = {}

    def __call__(self, *values: str | int) -> tuple[str, ...]:
        """The texts of these values, one for each value of the last name."""
        row = self._rows.get(values)
        if row is None:
            if len(self._rows) >= _MOST:
                self._rows.clear()
            *names, last = self._names
            labels = (*self._base, *zip(names, map(str, values), strict=True))
            row = self._rows[values] = tuple(label_text((*labels, (last, value))) for value in self._last)
        return row


class LabelTexts:
    """Label sets that all have the same base labels."""

    def __init__(self, base: tuple[tuple[str, str], ...] = ()) -> None:
        self.base = base
        self._texts: dict[tuple[str, ...], LabelSetTexts] = {}
        self._rows: dict[tuple[tuple[str, ...], tuple[str, ...]], LabelRowTexts] = {}

    def named(self, *names: str) -> LabelSetTexts:
        """Those with the base and these names."""
        texts = self._texts.get(names)
        if texts is None:
            texts = self._texts[names] = LabelSetTexts(self.base, names)
        return texts

    def rows(self, *names: str, last: tuple[str, ...]) -> LabelRowTexts:
        """Those with the base and these names, the last of which has each of these values."""
        rows = self._rows.get((names, last))
        if rows is None:
            rows = self._rows[names, last] = LabelRowTexts(self.base, names, last)
        return rows


class Exporter(Protocol):
    """What has metrics."""

    def text(self, *, openmetrics: bool) -> CompressibleDocument:
        """The metrics in a format, the same object for as long as they are the same."""
        ...


def metrics_page(exporter: Exporter) -> Handler:
    """The page for these metrics."""

    def page(request: HttpRequest) -> HttpResponse:
        openmetrics = wants_openmetrics(request.header("accept"))
        kind = OPENMETRICS_CONTENT_TYPE if openmetrics else TEXT_CONTENT_TYPE
        return HttpResponse(exporter.text(openmetrics=openmetrics), kind, headers=(("Vary", "Accept"),))

    return page
