"""Metric families and their two text formats: Prometheus (0.0.4) and OpenMetrics 1.0.

This module replaces prometheus_client, which keeps an object for every series and takes many times as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache

from neurontools.net.http_site import CompressedPart, CompressibleDocument, Handler, HttpRequest, HttpResponse
from neurontools.util.terminal import escape_controls

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_END = CompressedPart(b"# EOF\n")
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_MAX_CACHED_TEXTS = 2048  # limit of each cache, because a daemon that runs for months sees ever new processes
_SURROGATES = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")


class MetricKind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    INFO = "info"


@dataclass(frozen=True, slots=True, eq=False)
class FamilyDefinition:
    """The name, type and help text of a metric family.

    Definitions are compared by identity, so create each one only once. `name` lacks the suffix `_total` or `_info` of
    its samples.
    """

    name: str
    kind: MetricKind
    help: str

    @property
    def sample_name(self) -> str:
        return self.name + _SUFFIXES[self.kind]


_SUFFIXES = {MetricKind.GAUGE: "", MetricKind.COUNTER: "_total", MetricKind.INFO: "_info"}

Sample = tuple[str, float]
"""The labels of a sample, formatted by `label_text`, and its value."""

Definitions = dict[str, FamilyDefinition]
SamplesByName = dict[str, list[Sample]]


def define_families(prefix: str, *rows: tuple[str, MetricKind, str]) -> Definitions:
    """Defines families neurontools_… from rows of name, type and help text. Returns them by their names in the rows."""
    return {name: FamilyDefinition(f"neurontools_{prefix}{name}", kind, text) for name, kind, text in rows}


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """A metric family with its samples; `created` has the start time of each counter, Unix time in seconds."""

    definition: FamilyDefinition
    samples: Sequence[Sample]
    created: Sequence[Sample] = ()


def families_of(definitions: Definitions, samples: SamplesByName) -> Iterator[MetricFamily]:
    """Returns the families with their samples by name."""
    return (MetricFamily(definition, samples[name]) for name, definition in definitions.items())


def label_text(labels: Iterable[tuple[str, str]]) -> str:
    """Formats labels as {a="1",b="x"}, sorted by name. Returns "" if there are no labels."""
    parts = [f'{name}="{escape_label_value(value)}"' for name, value in sorted(labels)]
    return f"{{{','.join(parts)}}}" if parts else ""


def escape_label_value(value: str) -> str:
    """Escapes a label value for both formats. Replaces lone surrogates, which UTF-8 can't encode, by U+FFFD.

    Also escapes control characters other than line feeds, because people read metrics in terminals.
    """
    if value.isascii() and value.isalnum():
        return value
    if not value.isprintable():
        value = "\n".join(map(escape_controls, value.translate(_SURROGATES).split("\n")))
    return value.translate(_ESCAPES)


def encode_text(families: Iterable[MetricFamily]) -> bytes:
    """Encodes families in the Prometheus text format; omits families without samples."""
    return Exposition(openmetrics=False).document(families).content


def encode_openmetrics(families: Iterable[MetricFamily]) -> bytes:
    """Encodes families in the OpenMetrics text format; omits families without samples."""
    return Exposition(openmetrics=True).document(families).content


class Exposition:
    """Encodes the metrics of one exporter for each scrape, in one format. Reuses the text of unchanged families."""

    def __init__(self, *, openmetrics: bool) -> None:
        self._openmetrics = openmetrics
        self._written: dict[FamilyDefinition, tuple[MetricFamily, CompressedPart]] = {}

    def document(self, families: Iterable[MetricFamily]) -> CompressibleDocument:
        """Encodes families as a document with one part per family. Reuses the parts of unchanged families.

        Omits families without samples.
        """
        write = _openmetrics_family if self._openmetrics else _text_family
        written: dict[FamilyDefinition, tuple[MetricFamily, CompressedPart]] = {}
        for family in families if self._openmetrics else _separate_created(families):
            entry = self._written.get(family.definition)
            if entry is None or entry[0] != family:
                entry = (family, CompressedPart(write(family).encode()))
            written[family.definition] = entry
        self._written = written
        parts = [part for _, part in written.values() if part.content]
        return CompressibleDocument([*parts, _END] if self._openmetrics else parts)


def _separate_created(families: Iterable[MetricFamily]) -> Iterator[MetricFamily]:
    """Moves the start times of counters into separate gauges, as the Prometheus text format requires."""
    for family in families:
        if family.created:
            yield MetricFamily(family.definition, family.samples)
            yield MetricFamily(_created_definition(family.definition), family.created)
        else:
            yield family


@cache
def _created_definition(definition: FamilyDefinition) -> FamilyDefinition:
    return FamilyDefinition(f"{definition.name}_created", MetricKind.GAUGE, definition.help)


def _text_family(family: MetricFamily) -> str:
    definition, name = family.definition, family.definition.sample_name
    kind = "gauge" if definition.kind is MetricKind.INFO else definition.kind.value
    return _join_block(f"# HELP {name} {definition.help}\n# TYPE {name} {kind}", _sample_lines(name, family.samples))


def _openmetrics_family(family: MetricFamily) -> str:
    definition = family.definition
    lines = _sample_lines(definition.sample_name, family.samples)
    if family.created:  # OpenMetrics requires each start time next to its counter
        created = _sample_lines(f"{definition.name}_created", family.created)
        lines = [line for pair in zip(lines, created, strict=True) for line in pair]
    return _join_block(
        f"# HELP {definition.name} {definition.help}\n# TYPE {definition.name} {definition.kind.value}", lines
    )


def _join_block(head: str, lines: list[str]) -> str:
    return "\n".join((head, *lines, "")) if lines else ""


def _sample_lines(name: str, samples: Sequence[Sample]) -> list[str]:
    if math.isfinite(sum([value for _, value in samples])):
        return [f"{name}{labels} {value!r}" for labels, value in samples]
    return [f"{name}{labels} {_number_text(value)}" for labels, value in samples]


def _number_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "-Inf" if value == -math.inf else "+Inf"


def accepts_openmetrics(accept: str) -> bool:
    """Whether an HTTP Accept header requests OpenMetrics 1.0."""
    return any(_is_openmetrics(part) for part in accept.split(","))


def _is_openmetrics(part: str) -> bool:
    media, *parameters = (piece.strip() for piece in part.split(";"))
    versions = [parameter.partition("=")[2] for parameter in parameters if parameter.startswith("version=")]
    refused = any(parameter in ("q=0", "q=0.0") for parameter in parameters)
    return media == "application/openmetrics-text" and not refused and versions in ([], ["1.0.0"], ["0.0.1"])


class LabelTexts:
    """Formats sets of labels as texts and caches the texts. Each set includes the labels in `base`."""

    def __init__(self, base: tuple[tuple[str, str], ...] = ()) -> None:
        self.base = base
        self._texts: dict[tuple[str, ...], Callable[..., str]] = {}
        self._rows: dict[tuple[tuple[str, ...], tuple[str, ...]], Callable[..., tuple[str, ...]]] = {}

    def named(self, *names: str) -> Callable[..., str]:
        """Returns a function that converts values of the labels with these names to the text of a label set."""
        if names not in self._texts:
            self._texts[names] = lru_cache(_MAX_CACHED_TEXTS)(
                lambda *values: label_text((*self.base, *zip(names, map(str, values), strict=True)))
            )
        return self._texts[names]

    def rows(self, *names: str, last: tuple[str, ...]) -> Callable[..., tuple[str, ...]]:
        """Returns a function that converts the values of labels to several texts of label sets.

        `names` are the names of the labels. The function gets the values of all labels but the last. It returns one
        text for each value of the last label in `last`.
        """

        def row(*values: str | int) -> tuple[str, ...]:
            labels = (*self.base, *zip(names[:-1], map(str, values), strict=True))
            return tuple(label_text((*labels, (names[-1], value))) for value in last)

        if (names, last) not in self._rows:
            self._rows[names, last] = lru_cache(_MAX_CACHED_TEXTS)(row)
        return self._rows[names, last]


MetricsText = Callable[..., CompressibleDocument]
"""Returns encoded metrics; its keyword argument is `openmetrics`. While they are unchanged, returns the same object."""


def metrics_page(text: MetricsText) -> Handler:
    """Returns an HTTP handler that serves metrics in the format that the Accept header requests."""

    def page(request: HttpRequest) -> HttpResponse:
        openmetrics = accepts_openmetrics(request.header("accept"))
        kind = OPENMETRICS_CONTENT_TYPE if openmetrics else TEXT_CONTENT_TYPE
        return HttpResponse(text(openmetrics=openmetrics), kind, headers=(("Vary", "Accept"),))

    return page
