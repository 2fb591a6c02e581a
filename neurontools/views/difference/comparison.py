"""What differs between two sides, as a table for people and as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neurontools.util.formats import json_text
from neurontools.util.terminal import cell_width, escape_controls, excerpt
from neurontools.util.units import date_text, rfc3339_text
from neurontools.views.difference.quantities import Quantity, Value
from neurontools.views.difference.side import Side, Subject, paired

SCHEMA_VERSION = 1
NOISE_RATIO = 0.05  # changes of levels and rates by less are left out of the table
_NOISE_POINTS = 0.01  # of ratios, which may be small
_TITLE_CELLS, _VALUE_CELLS = 26, 18
_MOST_NAME_CELLS = 60


@dataclass(frozen=True, slots=True)
class Difference:
    """One quantity on both sides; None is unknown. `differs`: by more than noise."""

    quantity: Quantity
    a: Value
    b: Value
    differs: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """The host, a job or a device on both sides. `a` and `b` name it there; None where it is not."""

    kind: str  # host, job, device
    a: str | None
    b: str | None
    quantities: tuple[Difference, ...]

    @property
    def differs(self) -> bool:
        """Whether there is anything to tell."""
        return self.a is None or self.b is None or any(each.differs for each in self.quantities)


def compared(a: Side, b: Side) -> tuple[Compared, ...]:
    """Host, jobs and devices of two sides, in this order."""
    made = [_compared("host", a.instance, b.instance, a.host, b.host)]
    made += [
        _compared("job", one, other, a.jobs.get(one or ""), b.jobs.get(other or "")) for one, other in paired(a, b)
    ]
    for index in sorted(a.devices.keys() | b.devices.keys()):
        name = f"ND {index}"
        one, other = a.devices.get(index), b.devices.get(index)
        made.append(_compared("device", name if one else None, name if other else None, one, other))
    return tuple(made)


def _compared(kind: str, a: str | None, b: str | None, one: Subject | None, other: Subject | None) -> Compared:
    there = one or other
    assert there is not None  # noqa: S101 - it is on one of the sides
    quantities = []
    for quantity in there.quantities:
        values = one.value(quantity) if one else None, other.value(quantity) if other else None
        quantities.append(Difference(quantity, *values, _differs(quantity, *values)))
    return Compared(kind, a, b, tuple(quantities))


def _differs(quantity: Quantity, a: Value, b: Value) -> bool:
    if a is None or b is None or isinstance(a, str) or isinstance(b, str) or quantity.is_count:
        return a != b
    change = abs(b - a)
    if quantity.name.endswith("_ratio") and change < _NOISE_POINTS:
        return False
    return change > NOISE_RATIO * max(abs(a), abs(b))


def difference_text(a: Side, b: Side) -> str:
    """The table: what differs, by host, job and device."""
    found = compared(a, b)
    lines = [f"A: {_about(a)}", f"B: {_about(b)}", ""]
    lines.append(f"{'':<{_TITLE_CELLS}}{'A':>{_VALUE_CELLS}}{'B':>{_VALUE_CELLS}}  change")
    for each in found:
        if each.differs:
            lines += [_heading(each), *_rows(each)]
    same = [each for each in found if not each.differs]
    if len(same) == len(found):
        lines.append("nothing differs")
    counts = [_counted(sum(each.kind == kind for each in same), kind) for kind in ("job", "device")]
    told = " and ".join(count for count in counts if count)
    lines += ["", f"{f'{told} without a difference; ' if told else ''}left out: what differs by less than 5 %"]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _counted(count: int, noun: str) -> str:
    return "" if not count else f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _about(side: Side) -> str:
    times = side.taken_at_unix_seconds
    first, last = (date_text(each) for each in (times[0], times[-1]))
    if len(times) == 1:
        return f"{escape_controls(side.name)}, {side.instance}, {first}"
    of = f"{len(times)} of " if len(times) < side.moment_count else ""
    moments = f"{of}{side.moment_count} moments"
    return f"{escape_controls(side.name)}, {side.instance}, {first} to {last}, mean or peak of {moments}"


def _heading(each: Compared) -> str:
    names = [excerpt(name, _MOST_NAME_CELLS) for name in (each.a, each.b) if name is not None]
    name = names[0] if len(set(names)) == 1 else f"{names[0]}, in B {names[1]}"
    alone = "" if each.a is not None and each.b is not None else f" (only in {'A' if each.b is None else 'B'})"
    return f"{name}{alone}"


def _rows(each: Compared) -> Iterator[str]:
    is_alone = each.a is None or each.b is None
    for row in each.quantities:
        if not (row.differs or (is_alone and (row.a, row.b) != (None, None))):
            continue
        cells = [row.quantity.text(value) for value in (row.a, row.b)]
        if is_alone:
            cells = ["" if name is None else cell for name, cell in zip((each.a, each.b), cells, strict=True)]
        padded = "".join(" " * max(1, _VALUE_CELLS - cell_width(cell)) + cell for cell in cells)
        yield f"  {row.quantity.title:<{_TITLE_CELLS - 2}}{padded}  {'' if is_alone else _change(row)}"


def _change(row: Difference) -> str:
    a, b = row.a, row.b
    if a is None or b is None or isinstance(a, str) or isinstance(b, str):
        return ""
    if row.quantity.name.endswith("_ratio"):
        return f"{(b - a) * 100:+.1f} points"
    if not a:
        return ""
    ratio = b / a
    return f"{(ratio - 1) * 100:+.1f} %" if 0.1 < ratio < 10 else f"{ratio:.2g} times"


def difference_json(a: Side, b: Side) -> str:
    """All of it as a document: also what does not differ, which says so."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "a": _side(a),
        "b": _side(b),
        "compared": [
            {
                "kind": each.kind,
                "a": each.a,
                "b": each.b,
                "differs": each.differs,
                "quantities": [
                    {"name": row.quantity.name, "a": row.a, "b": row.b, "differs": row.differs}
                    for row in each.quantities
                ],
            }
            for each in compared(a, b)
        ],
    }
    return json_text(document, indent=2) + "\n"


def _side(side: Side) -> dict[str, object]:
    return {
        "name": side.name,
        "instance": side.instance,
        "first_at": rfc3339_text(side.taken_at_unix_seconds[0]),
        "last_at": rfc3339_text(side.taken_at_unix_seconds[-1]),
        "moments_read": len(side.taken_at_unix_seconds),
        "moments": side.moment_count,
    }
