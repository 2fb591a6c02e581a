"""The summary of a recording, or of a part of it: `neuron-top --summary`."""

from __future__ import annotations

from collections.abc import Iterator

from neurontools.util.formats import json_text
from neurontools.util.terminal import cell_width, escape_controls, excerpt
from neurontools.util.units import clock_text, ranges_text, rfc3339_text
from neurontools.views.host_difference import (
    DEVICE_QUANTITIES,
    SCHEMA_VERSION,
    ComparedQuantity,
    ComparedValue,
    FindingSpan,
    RecordingSide,
    SubjectValues,
    side_part,
    side_text,
)

_TITLE_CELLS, _VALUE_CELLS, _DEVICE_CELLS = 26, 14, 24
_MOST_NAME_CELLS = 60
_STATISTICS = ("lowest", "mean", "highest", "last")


def recording_summary_text(side: RecordingSide) -> str:
    """Returns the text output: findings with their times, then tables of the host, the jobs and the devices."""
    lines = [side_text(side, "values"), "", "Findings" if side.findings else "No findings"]
    alike: dict[tuple[str, str], list[FindingSpan]] = {}
    for span in side.findings:
        alike.setdefault((span.finding.reason, span.finding.action), []).append(span)
    for spans in alike.values():
        lines += _finding_lines(spans)
    lines += ["", f"{'':<{_TITLE_CELLS}}{''.join(name.upper().rjust(_VALUE_CELLS) for name in _STATISTICS)}"]
    for name, subject in (("host", side.host), *side.jobs.items()):
        lines += [excerpt(name, _MOST_NAME_CELLS), *_subject_lines(subject)]
    devices = sorted(side.devices.items())
    known = [quantity for quantity in DEVICE_QUANTITIES if any(quantity in each.values for _, each in devices)]
    if known:
        titles = "".join(quantity.title.rjust(_DEVICE_CELLS) for quantity in known)
        over = "".join(quantity.over.value.upper().rjust(_DEVICE_CELLS) for quantity in known)
        lines += ["", f"{'devices':<8}{titles}", f"{'':<8}{over}"]
    for index, subject in devices:
        cells = "".join(quantity.text(subject.value(quantity)).rjust(_DEVICE_CELLS) for quantity in known)
        lines.append(f"{f'ND {index}':<8}{cells}")
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _finding_lines(alike: list[FindingSpan]) -> Iterator[str]:
    """Yields the lines of findings with the same reason, which may concern several devices."""
    finding = alike[0].finding
    first = min(span.first_at_unix_seconds for span in alike)
    last = max(span.last_at_unix_seconds for span in alike)
    indices = {index for span in alike for index in span.finding.device_indices}
    devices = f"ND {ranges_text(indices)}: " if indices else ""
    yield (
        f"  {clock_text(first)} to {clock_text(last)}  {finding.severity.name.lower()}  "
        f"{devices}{escape_controls(finding.reason)}"
    )
    if finding.action:
        yield f"    do: {escape_controls(finding.action)}"


def _subject_lines(subject: SubjectValues) -> Iterator[str]:
    for quantity in (each for each in subject.quantities if each in subject.values):
        cells = [quantity.text(value) for value in _statistics(subject, quantity).values()]
        if isinstance(subject.values[quantity][-1], str):  # a text has only a last value
            cells = ["", "", "", cells[-1]]
        padded = "".join(" " * max(1, _VALUE_CELLS - cell_width(cell)) + cell for cell in cells)
        yield f"  {quantity.title:<{_TITLE_CELLS - 2}}{padded}"


def _statistics(subject: SubjectValues, quantity: ComparedQuantity) -> dict[str, ComparedValue]:
    values = subject.values[quantity]
    numbers = [value for value in values if not isinstance(value, str)]
    found: tuple[ComparedValue, ...] = (None, None, None)
    if len(numbers) == len(values):
        found = min(numbers), sum(numbers) / len(numbers), max(numbers)
    return dict(zip(_STATISTICS, (*found, values[-1]), strict=True))


def recording_summary_json(side: RecordingSide) -> str:
    """Returns the same values as JSON.

    None is an unknown value. A text, such as a state, has only a last value; its other values are None too.
    """
    subjects = [("host", side.instance, side.host), *(("job", *each) for each in side.jobs.items())]
    subjects += [("device", f"ND {index}", each) for index, each in sorted(side.devices.items())]
    document = {
        "schema_version": SCHEMA_VERSION,
        "recording": side_part(side),
        "findings": [
            {
                "kind": span.finding.kind,
                "severity": span.finding.severity.name.lower(),
                "devices": span.finding.device_indices,
                "pid": span.finding.pid,
                "reason": span.finding.reason,
                "action": span.finding.action,
                "first_at": rfc3339_text(span.first_at_unix_seconds),
                "last_at": rfc3339_text(span.last_at_unix_seconds),
            }
            for span in side.findings
        ],
        "subjects": [
            {
                "kind": kind,
                "name": name,
                "quantities": [
                    {"name": quantity.name, **_statistics(subject, quantity)} for quantity in subject.values
                ],
            }
            for kind, name, subject in subjects
        ],
    }
    return json_text(document, indent=2) + "\n"
