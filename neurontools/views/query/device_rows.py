"""Rows that scroll by, one a device, in fixed columns: what `neuron-ls --loop` prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neurontools.model import Snapshot, SourceKind
from neurontools.util.terminal import escape_controls
from neurontools.util.units import UNKNOWN, clock_text
from neurontools.views.query.fields import FIELDS, Row

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    unit: str
    cells: int  # 0: the last one, as long as it gets
    text: Callable[[Row], str]


def _number(name: str, per: float, decimals: int) -> Callable[[Row], str]:
    read = FIELDS[name].read

    def text(row: Row) -> str:
        value = read(row)
        return f"{value / per:.{decimals}f}" if isinstance(value, (int, float)) else UNKNOWN

    return text


def _time(row: Row) -> str:
    return clock_text(row.snapshot.taken_at_unix_seconds)


def _held(row: Row) -> str:
    """Cores held of those there are; a core that somebody may hold makes it unknown."""
    states = [core.is_free for core in row.device_cores]
    return f"{UNKNOWN if None in states else states.count(False)}/{len(states)}"


def _memory_ratio(row: Row) -> str:
    used = FIELDS["memory.used"].read(row)
    total = row.device.memory_bytes
    return f"{used / total * 100:.0f}" if isinstance(used, (int, float)) and total else UNKNOWN


def _pids(row: Row) -> str:
    pids = FIELDS["pids"].read(row)
    return ",".join(map(str, pids)) if isinstance(pids, list) and pids else UNKNOWN


def _ecc(row: Row) -> str:
    """Uncorrected and corrected ones, of HBM and SRAM together."""
    ecc = row.device.ecc
    sums = []
    for known in (
        (ecc.mem_uncorrected_total, ecc.sram_uncorrected_total),
        (ecc.mem_corrected_total, ecc.sram_corrected_total),
    ):
        counts = [count for count in known if count is not None]
        sums.append(str(sum(counts)) if counts else UNKNOWN)
    return "/".join(sums)


_COLUMNS = (
    _Column("time", "h:m:s", 8, _time),
    _Column("nd", "index", 5, lambda row: str(row.device.index)),
    _Column("cores", "held", 6, _held),
    _Column("util", "%", 6, _number("utilization", 0.01, 1)),
    _Column("flops", "TFLOPS", 8, _number("flops", 1e12, 2)),
    _Column("mem", "GB", 7, _number("memory.used", _GIB, 1)),
    _Column("mem", "%", 4, _memory_ratio),
    _Column("power", "%", 6, _number("power", 0.01, 1)),
    _Column("ecc", "unc/corr", 9, _ecc),
    _Column("health", "", 9, lambda row: row.verdict.severity_name or "unknown"),
    _Column("pids", "", 0, _pids),
)


def header(snapshot: Snapshot) -> str:
    """Whose rows these are, what the columns are, and their units.

    Three lines that begin with #, so that a reader of rows can leave them out.
    """
    instance = snapshot.instance
    notes = ["simulated"] if snapshot.source is SourceKind.SIMULATED else []
    if snapshot.synthetic_load:
        notes.append(f"synthetic load: {escape_controls(snapshot.synthetic_load[:30])}")
    whose = f"{escape_controls(instance.instance_id or 'this host')} ({escape_controls(instance.instance_type)})"
    lines = [f"# {whose}" + (f" [{', '.join(notes)}]\n" if notes else "\n")]
    lines += [
        "#" + _line([_cell(column, getattr(column, part)) for column in _COLUMNS])[1:] for part in ("title", "unit")
    ]
    return "".join(lines)


def device_rows(rows: Sequence[Row]) -> str:
    """A line for each."""
    return "".join(_line([_cell(column, column.text(row)) for column in _COLUMNS]) for row in rows)


def _cell(column: _Column, text: str) -> str:
    return text.rjust(column.cells) if column.cells else text


def _line(cells: Sequence[str]) -> str:
    return f"  {' '.join(cells)}".rstrip() + "\n"
