"""Whose profile it is, where the time of its steps went, and how its ranks compare."""

from __future__ import annotations

from neurontools.profile.analysis import RunReport
from neurontools.profile.analysis.operators import seconds_by_engine
from neurontools.profile.analysis.report import RankReport
from neurontools.profile.analysis.steps import SlowStep
from neurontools.profile.definitions import ENGINE_NAMES
from neurontools.util.units import (
    UNKNOWN,
    bytes_text,
    count_text,
    counted,
    date_text,
    duration_text,
    flops_text,
    percent_text,
    ranges_text,
    short_count_text,
)
from neurontools.views.drawing.columns import Column, chosen, count_column, row_line, title_line
from neurontools.views.drawing.gauge import bar
from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.line import Line, Run, cell, fit_marked
from neurontools.views.profile.parts import heading, labelled, name, plain_line

_BAR_CELLS = 30
_DROPPED_CELLS = 9
_PART_STYLES = ("warn", "text", "system", "memory", "busy", "held")


def title_lines(report: RunReport, width: int) -> list[Line]:
    """What was profiled, when, and of what its times are."""
    first = report.ranks[0].profile.metadata
    hosts = len({rank.profile.metadata.host for rank in report.ranks})
    began = date_text(first.began_ns / 1e9)
    where = f" on {counted(hosts, 'host')}" if hosts > 1 else ""
    who = name(first.script.rpartition("/")[2]) or "profile"
    runs: list[Run] = [
        (f" {who}", "strong"),
        (
            f", {name(first.instance_type or 'unknown instance type')}, {counted(len(report.ranks), 'rank')}{where}, ",
            "text",
        ),
        (f"{counted(report.step_count, 'step')}, {began}", "text"),
    ]
    lines = [fit_marked(runs, width)]
    lines.append(plain_line(f"{name(first.device_time)}; counts, FLOPs and bytes are exact", width, "dim"))
    failures = [(rank.number, failure) for rank in report.ranks if (failure := rank.profile.state.failure)]
    return lines + [plain_line(f"rank {rank} failed: {name(failure)}", width, "bad") for rank, failure in failures]


def step_lines(report: RunReport, width: int, glyphs: Glyphs) -> list[Line]:
    """The split of the time, the slowest steps, and how much of the NeuronCores was used."""
    split = report.split
    times = [rank.times for rank in report.ranks if rank.times is not None]
    is_several = len(report.ranks) > 1
    without = "without the first step" if any(rank.first_step for rank in report.ranks) else ""
    note = ", ".join(filter(None, ("of all ranks" if is_several else "", without)))
    lines = [heading("Step time" if times else "Time", note, width, glyphs)]
    if times:
        middle, high = max(each.p50_seconds for each in times), max(each.p99_seconds for each in times)
        longest = max(each.longest_seconds for each in times)
        told = f"p50 {duration_text(middle)}, p99 {duration_text(high)}, longest {duration_text(longest)}"
        whose = " (of the slowest rank)" if is_several else ""
        lines.append(labelled("a step", [(told, "text"), (whose, "dim")], width))
    else:
        lines.append(
            plain_line("no step was counted: no optimizer stepped; this is the whole time of the profile", width, "dim")
        )
    for (part, seconds), style in zip(split.parts(), _PART_STYLES, strict=True):
        ratio = split.ratio(seconds)
        told, a_step = percent_text(ratio, 1), duration_text(seconds / report.split_steps)
        shown = cell(told, 7, right=True) + cell(a_step, 12, right=True)
        lines.append(labelled(part, [*bar(ratio, _BAR_CELLS, glyphs, style), (shown, "text")], width))
    firsts = [rank.first_step for rank in report.ranks if rank.first_step is not None]
    if firsts:
        begun = _slow_text(max(firsts, key=lambda each: each.seconds))
        lines.append(labelled("first step", [(begun, "text"), (" (with all before it)", "dim")], width))
    lines += [labelled("slow", [(_slow_text(each), "text")], width) for each in _slow_steps(report)]
    lines.append(labelled("NeuronCores", [(_use_text(report), "text")], width))
    engines = seconds_by_engine(report.operators)
    whole = sum(engines.values())
    if whole:
        told = ", ".join(f"{ENGINE_NAMES[engine]} {percent_text(time / whole, 1)}" for engine, time in engines.items())
        lines.append(labelled("engines", [(told, "text"), (" (inferred from operators' names)", "dim")], width))
    return lines


def rank_lines(report: RunReport, width: int, glyphs: Glyphs) -> list[Line]:
    """The ranks beside each other; nothing where there is one."""
    if len(report.ranks) < 2:
        return []
    awaited = report.straggler
    note = "" if awaited is None else f"the others wait for rank {awaited.number}"
    columns = chosen(_RANK_COLUMNS, width)
    lines = [heading("Ranks", note, width, glyphs), title_line(columns, width)]
    return lines + [row_line(columns, rank, width) for rank in report.ranks]


def _slow_steps(report: RunReport) -> list[SlowStep]:
    """Of the rank that has the longest step, those that took more than twice what its steps usually take."""
    ranks = [rank for rank in report.ranks if rank.times is not None and rank.times.count > 2]
    if not ranks:
        return []
    rank = max(ranks, key=lambda each: each.slowest[0].seconds)
    usual = 0.0 if rank.times is None else rank.times.p50_seconds
    return [each for each in rank.slowest if each.seconds > 2 * usual]


def _slow_text(slow: SlowStep) -> str:
    part, seconds = max(slow.split.parts(), key=lambda each: each[1])
    ratio = percent_text(slow.split.ratio(seconds), 0)
    return f"step {count_text(slow.step)} took {duration_text(slow.seconds)}: {part} {duration_text(seconds)}, {ratio}"


def _use_text(report: RunReport) -> str:
    split = report.split
    busy = split.busy_ratio
    idle = None if busy is None else 1.0 - busy
    mfu = percent_text(report.mfu_ratio, 4)
    rate = flops_text(report.flops_per_second)
    return f"busy {percent_text(busy, 1)}, idle {percent_text(idle, 1)}; {rate}, MFU {mfu} of the bf16 peak"


def _part(position: int, rank: RankReport) -> str:
    return percent_text(rank.split.ratio(rank.split.parts()[position][1]), 1)


def _dropped(rank: RankReport) -> str:
    dropped = sum(rank.profile.state.dropped.values())
    return short_count_text(dropped, _DROPPED_CELLS) if dropped else ""


_RANK_COLUMNS: tuple[Column[RankReport], ...] = (
    Column("RANK", 5, 0, lambda rank: str(rank.number)),
    Column("HOST", 12, 7, lambda rank: name(rank.profile.metadata.host), True),
    Column("CORES", 8, 3, lambda rank: ranges_text(rank.profile.metadata.cores) or UNKNOWN, True),
    count_column("STEPS", 8, 2, lambda rank: len(rank.profile.steps)),
    Column("P50", 9, 0, lambda rank: duration_text(None if rank.times is None else rank.times.p50_seconds)),
    Column("P99", 9, 4, lambda rank: duration_text(None if rank.times is None else rank.times.p99_seconds)),
    Column("INPUT", 6, 2, lambda rank: _part(0, rank)),
    Column("HOST TR", 7, 1, lambda rank: _part(1, rank)),
    Column("COMPILE", 7, 1, lambda rank: _part(2, rank)),
    Column("TRANSFER", 8, 2, lambda rank: _part(3, rank)),
    Column("EXECUTE", 7, 1, lambda rank: _part(4, rank)),
    Column("COLLECT", 7, 1, lambda rank: _part(5, rank)),
    Column("BUSY", 6, 0, lambda rank: percent_text(rank.split.busy_ratio, 1)),
    Column("HBM PEAK", 9, 3, lambda rank: bytes_text(rank.hbm_peak_bytes)),
    Column("DROPPED", _DROPPED_CELLS, 8, _dropped),
)
