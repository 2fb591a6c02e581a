"""The answer to `neuron-ls --query`: CSV as nvidia-smi writes it, or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.formats import csv_line, foreign_cell, json_text
from neurontools.util.terminal import error_excerpt
from neurontools.util.units import UNKNOWN
from neurontools.views.query.fields import FIELDS, PLAIN, Field, Row, Value

FORMATS = ("csv", "json", "noheader", "nounits")


@dataclass(frozen=True, slots=True)
class Format:
    """What --format asks for."""

    is_json: bool = False
    has_header: bool = True
    has_units: bool = True


def parse_fields(text: str) -> tuple[Field, ...]:
    """The fields of --query; UserError names the one that isn't."""
    chosen = []
    for part in text.split(","):
        name = part.strip()
        field = FIELDS.get(name)
        if field is None:
            near = get_close_matches(name, FIELDS, n=1)
            guess = f"; did you mean {near[0]}?" if near else ""
            raise UserError(f"--query: {_shown(name)} is no field{guess}; --help-query lists them", EXIT_USAGE)
        chosen.append(field)
    return tuple(chosen)


def parse_format(text: str) -> Format:
    """The parts of --format; UserError names the one that isn't."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if part not in FORMATS:
            raise UserError(f"--format: {_shown(part)} is none of {', '.join(FORMATS)}", EXIT_USAGE)
    if ("csv" in parts) == ("json" in parts):
        raise UserError("--format: give one of csv and json, such as --format csv,noheader,nounits", EXIT_USAGE)
    return Format("json" in parts, "noheader" not in parts, "nounits" not in parts)


def document(fields: Sequence[Field], rows: Sequence[Row], form: Format) -> str:
    """The whole answer."""
    if form.is_json:
        answer = [{field.json_name: field.read(row) for field in fields} for row in rows]
        return json_text(answer, indent=2) + "\n"
    header = [f"{field.name} [{field.unit.name}]" if field.unit.name else field.name for field in fields]
    lines = [csv_line(header)] if form.has_header else []
    lines += [csv_line(_cell(field, field.read(row), form) for field in fields) for row in rows]
    return "".join(lines)


def further_lines(fields: Sequence[Field], rows: Sequence[Row], form: Format, *, is_first: bool) -> str:
    """The answer as one of many: CSV has its header in the first alone, of JSON each is an array on a line."""
    if form.is_json:
        return json_text([{field.json_name: field.read(row) for field in fields} for row in rows]) + "\n"
    return document(fields, rows, form if is_first else replace(form, has_header=False))


def help_text() -> str:
    """The text of --help-query."""
    width = max(map(len, FIELDS))
    lines = [
        f"  {field.name:<{width}}  {field.text}{f' [{field.unit.name}]' if field.unit.name else ''}"
        for field in FIELDS.values()
    ]
    return (
        "Fields for --query, separated by commas. With a field of a NeuronCore or a process there is a line for each\n"
        "core, else one for each device.\n\n" + "\n".join(lines) + "\n"
    )


def _cell(field: Field, value: Value, form: Format) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(str, value)) or UNKNOWN
    if isinstance(value, str):
        return foreign_cell(value) or UNKNOWN
    if field.unit is PLAIN:
        return str(value)
    text = f"{value / field.unit.per:.{field.unit.decimals}f}"
    return f"{text} {field.unit.name}" if form.has_units else text


def _shown(text: str) -> str:
    return error_excerpt(text)
