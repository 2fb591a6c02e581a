"""The configuration of neuron-monitor: the metric groups, their processes, and their periods.

This module does not use pydantic: the command runs permanently, and pydantic would stay in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from neurontools.exporters.monitor.record_types import (
    DEFAULT_PERIOD_SECONDS,
    LONGEST_PERIOD_SECONDS,
    RUNTIME_GROUPS,
    SHORTEST_PERIOD_SECONDS,
    SYSTEM_GROUPS,
)
from neurontools.util.errors import EXIT_NOT_FOUND, EXIT_PERMISSION, EXIT_USAGE, UserError

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_LONGEST_TEXT = 64


MAX_FILE_BYTES = 2**20
_ROOT_KEYS = ("period", "neuron_runtimes", "system_metrics", "neuroncores_in_use", "k8s_info")
_RUNTIME_KEYS = ("period", "tag_filter", "metrics", "address")  # `address` is unused; it dates from Inferentia1
_METRIC_KEYS = ("period", "type")


class InvalidDuration(ValueError):
    """A text is not a duration; the message gives the reason."""


def parse_duration(text: str) -> float:
    """Converts a Go duration such as "1m30s" to seconds. Accepts fractions, which AWS's neuron-monitor rejects."""
    position = 0
    seconds = 0.0
    if len(text) <= _LONGEST_TEXT:
        while match := _PART.match(text, position):
            seconds += float(match[1]) * _SECONDS[match[2]]
            position = match.end()
    if not text or position != len(text):
        raise InvalidDuration('not a duration; write a number with a unit (ms, s, m, h), such as "5s" or "1m30s"')
    return seconds


_OF_DEVICES, _HELD = "devices", "held"  # values of neuroncores_in_use


@dataclass(frozen=True, slots=True)
class MetricGroup:
    type: str
    period_seconds: float


@dataclass(frozen=True, slots=True)
class RuntimeSelection:
    """Metric groups for the processes whose tag contains a match of `tag_filter` (None: all processes)."""

    tag_filter: re.Pattern[str] | None
    metrics: tuple[MetricGroup, ...]

    def selects(self, tag: str) -> bool:
        return self.tag_filter is None or self.tag_filter.search(tag) is not None


@dataclass(frozen=True, slots=True)
class MonitorConfiguration:
    """The configuration of neuron-monitor.

    With `lists_held_cores_only`, a process lists only the NeuronCores that it holds, otherwise all NeuronCores of its
    devices. `problems` are warnings about invalid parts, which are ignored. `notes` name unknown keys, which are
    ignored.
    """

    period_seconds: float
    runtimes: tuple[RuntimeSelection, ...]
    system_metrics: tuple[MetricGroup, ...]
    k8s_info_period_seconds: float | None = None  # None if the records have no neuron_k8s_info
    lists_held_cores_only: bool = False
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def default(cls, period_seconds: float = DEFAULT_PERIOD_SECONDS) -> MonitorConfiguration:
        """Returns the default configuration: all metric groups, for all processes."""
        runtime_groups = tuple(MetricGroup(name, period_seconds) for name in RUNTIME_GROUPS)
        system_groups = tuple(MetricGroup(name, period_seconds) for name in SYSTEM_GROUPS)
        return cls(period_seconds, (RuntimeSelection(None, runtime_groups),), system_groups)


def read_configuration(file: str) -> MonitorConfiguration:
    """Reads a configuration file. Raises UserError if the file is unreadable or its configuration is invalid."""
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except PermissionError as error:
        raise UserError(f"{file}: {error.strerror}; give a readable file", EXIT_PERMISSION) from None
    except OSError as error:
        exit_code = EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_USAGE
        raise UserError(f"{file}: {error.strerror}; give a readable JSON file", exit_code) from None
    if len(content) > MAX_FILE_BYTES:
        raise UserError(f"{file}: larger than {MAX_FILE_BYTES} bytes; is this a configuration?", EXIT_USAGE)
    try:
        document = json.loads(content.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise UserError(f"{file}:{error.lineno}:{error.colno}: not JSON: {error.msg}", EXIT_USAGE) from None
    except (UnicodeDecodeError, RecursionError):
        raise UserError(f"{file}: not JSON in UTF-8; save it so", EXIT_USAGE) from None
    try:
        return parse_configuration(document)
    except InvalidConfiguration as error:
        raise UserError(f"{file}: {error}", EXIT_USAGE) from None


class InvalidConfiguration(ValueError):
    """A configuration has an error that can't be ignored; the text names the key and its allowed values."""


def parse_configuration(document: object) -> MonitorConfiguration:
    """Parses a decoded JSON document. Raises InvalidConfiguration for an error that can't be ignored.

    As in AWS's neuron-monitor, an unknown metric type or an invalid period affects only its own entry.
    """
    return _ConfigurationParser().configuration(document)


class _ConfigurationParser:
    """Parses one configuration and collects its warnings."""

    def __init__(self) -> None:
        self._problems: list[str] = []
        self._notes: list[str] = []

    def configuration(self, document: object) -> MonitorConfiguration:
        root = _expect_object(document, "the configuration")
        _check_keys(root, "", _ROOT_KEYS, self._notes)
        period_seconds = self._period(root, "", DEFAULT_PERIOD_SECONDS)
        runtimes = []
        for path, item in _object_list(root, "", "neuron_runtimes"):
            _check_keys(item, path, _RUNTIME_KEYS, self._notes)
            inherited_seconds = self._period(item, path, period_seconds)
            metrics = self._metrics(item, path, "metrics", RUNTIME_GROUPS, inherited_seconds)
            runtimes.append(RuntimeSelection(_tag_filter(item, path), metrics))
        system_metrics = self._metrics(root, "", "system_metrics", SYSTEM_GROUPS, period_seconds)
        k8s_info_period_seconds = self._k8s_info(root, period_seconds)
        return MonitorConfiguration(
            period_seconds,
            tuple(runtimes),
            system_metrics,
            k8s_info_period_seconds,
            self._lists_held_cores_only(root),
            tuple(self._problems),
            tuple(self._notes),
        )

    def _metrics(
        self, parent: Mapping[str, object], path: str, key: str, allowed: Sequence[str], inherited_seconds: float
    ) -> tuple[MetricGroup, ...]:
        groups: dict[str, MetricGroup] = {}
        for place, item in _object_list(parent, path, key):
            _check_keys(item, place, _METRIC_KEYS, self._notes)
            name = item.get("type")
            if not isinstance(name, str) or name not in allowed:
                given = "is missing" if name is None else f"is {_quote_value(name)}"
                self._problems.append(f"{place}.type {given} and is left out; it can be {', '.join(allowed)}")
            elif name in groups:
                self._problems.append(f"{place}.type is {_quote_value(name)} for the second time; the first one counts")
            else:
                groups[name] = MetricGroup(name, self._period(item, place, inherited_seconds))
        return tuple(groups.values())

    def _period(self, item: Mapping[str, object], path: str, inherited_seconds: float) -> float:
        text = item.get("period")
        if text is None:
            return inherited_seconds
        instead = f"; {inherited_seconds:g} s is used"
        place = _join_path(path, "period")
        if not isinstance(text, str):
            self._problems.append(f'{place} is {_quote_value(text)}: write a duration in quotes, such as "5s"{instead}')
            return inherited_seconds
        try:
            seconds = parse_duration(text)
        except InvalidDuration as error:
            self._problems.append(f"{place} is {_quote_value(text)}: {error}{instead}")
            return inherited_seconds
        if not SHORTEST_PERIOD_SECONDS <= seconds <= LONGEST_PERIOD_SECONDS:
            self._problems.append(f"{place} is {_quote_value(text)}: it can be 10ms to 24h{instead}")
            return inherited_seconds
        return seconds

    def _lists_held_cores_only(self, root: Mapping[str, object]) -> bool:
        """Reads neuroncores_in_use, a key that AWS lacks: whether processes list only NeuronCores that they hold."""
        value = root.get("neuroncores_in_use", _OF_DEVICES)
        if value not in (_OF_DEVICES, _HELD):
            choice = f'it can be "{_OF_DEVICES}" or "{_HELD}"; "{_OF_DEVICES}" is used'
            self._problems.append(f"neuroncores_in_use is {_quote_value(value)}: {choice}")
        return value == _HELD

    def _k8s_info(self, root: Mapping[str, object], period_seconds: float) -> float | None:
        """Returns the period of neuron_k8s_info in the records; None if it is not configured.

        The key is our extension of AWS's format: true, or an object with a period.
        """
        value = root.get("k8s_info")
        if value is None or value is False:
            return None
        if value is True:
            return period_seconds
        if isinstance(value, dict):
            return self._period(value, "k8s_info", period_seconds)
        raise InvalidConfiguration(f'k8s_info is {_quote_value(value)}; it can be true, false or {{"period": "15s"}}')


def _tag_filter(item: Mapping[str, object], path: str) -> re.Pattern[str] | None:
    text = item.get("tag_filter")
    if text is None or text == "":
        return None
    if not isinstance(text, str):
        raise InvalidConfiguration(f"{path}.tag_filter is {_quote_value(text)}; write a regular expression in quotes")
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidConfiguration(f"{path}.tag_filter is no regular expression: {error}") from None


def _object_list(parent: Mapping[str, object], path: str, key: str) -> list[tuple[str, Mapping[str, object]]]:
    """Returns the objects of an array with their paths; empty if the key is absent."""
    value = parent.get(key)
    if value is None:
        return []
    place = _join_path(path, key)
    if not isinstance(value, list):
        raise InvalidConfiguration(f"{place} is {_quote_value(value)}; it must be an array of objects")
    places = [f"{place}[{index}]" for index in range(len(value))]
    return [(where, _expect_object(item, where)) for where, item in zip(places, value, strict=True)]


def _expect_object(value: object, place: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise InvalidConfiguration(f"{place} is {_quote_value(value)}; it must be an object, {{…}}")
    return value


def _check_keys(item: Mapping[str, object], path: str, allowed: Sequence[str], notes: list[str]) -> None:
    """Rejects keys that look like misspelled known keys; AWS's neuron-monitor skips all unknown keys."""
    for key in item:
        if key in allowed:
            continue
        place = _join_path(path, key)
        near = get_close_matches(key, allowed, n=1, cutoff=0.75)
        if near:
            raise InvalidConfiguration(f"{_quote_value(place)}: there is no such key; did you mean {near[0]}?")
        notes.append(f"{_quote_value(place)} means nothing and is skipped; keys here: {', '.join(allowed)}")


def _join_path(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _quote_value(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else text[:57] + "..."
