"""The report on a profile as text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from neurontools.profile import SourceLine
from neurontools.profile.analysis.evidence import profile_evidence
from neurontools.profile.analysis.memory import LineMemory
from neurontools.profile.analysis.named_spans import NamedSpanUse
from neurontools.profile.analysis.operators import (
    UNKNOWN_LINE,
    GraphUse,
    ModuleUse,
    OperatorUse,
    largest_uses,
    seconds_by_engine,
    source_text,
)
from neurontools.profile.analysis.report import CollectiveUse, RankReport, RunReport
from neurontools.profile.analysis.steps import SlowStep
from neurontools.profile.analysis.topology import LinkKind, LinkUse, Place, Topology
from neurontools.profile.analysis.verdict import RunVerdict, find_verdict
from neurontools.profile.definitions import ENGINE_NAMES, Phase
from neurontools.util.terminal import escape_controls
from neurontools.util.units import (
    UNKNOWN,
    count_text,
    counted,
    date_text,
    duration_text,
    flops_text,
    iec_bytes_text,
    percent_text,
    ranges_text,
    short_count_text,
)
from neurontools.views.drawing.glyphs import Glyphs, bar
from neurontools.views.drawing.lines import (
    Line,
    Run,
    TableColumn,
    TextPage,
    cell,
    clip,
    count_column,
    fit_marked,
    fitting_columns,
    line_width,
    pad,
    row_line,
    title_line,
)

_LABEL_CELLS = 13
_LONGEST_NAME = 200
_BAR_CELLS = 30
_DROPPED_CELLS = 9
_PART_STYLES = ("warn", "text", "system", "memory", "busy", "held")
_SHORT_HASH = 10
_DO = "do: "
_LEAST_TEXT_CELLS = 20


def profile_page(report: RunReport, width: int, glyphs: Glyphs, most: int) -> TextPage:
    """Draws all sections of the report. Tables have at most `most` rows, except those of ranks and collectives."""
    page = TextPage(title_lines(report, width))
    for lines in (
        verdict_lines(find_verdict(profile_evidence(report)), width, glyphs),
        step_lines(report, width, glyphs),
        named_span_lines(report, width, glyphs, most),
        rank_lines(report, width, glyphs),
        module_lines(report, width, glyphs, most),
        operator_lines(report, width, glyphs, most),
        graph_lines(report, width, glyphs, most),
        memory_lines(report, width, glyphs, most),
        collective_lines(report, width, glyphs),
        link_lines(report.topology, width, glyphs, most),
    ):
        if lines:
            page.add_lines((), *lines)
    return page


def section_heading(text: str, note: str, width: int, glyphs: Glyphs) -> Line:
    """Draws a section heading with a note at the right."""
    runs: list[Run] = [(f"{glyphs.rule} ", "rule"), (text, "heading"), (" ", "rule")]
    room = width - line_width(runs) - 3
    if note and room > 0:
        shown_text = clip(note, room, mark=True)
        gap = glyphs.rule * max(1, room - len(shown_text))
        runs += [(gap, "rule"), (f" {shown_text} ", "dim")]
    runs.append((glyphs.rule * max(0, width - line_width(runs)), "rule"))
    return fit_marked(runs, width)


def labelled(label: str, runs: Sequence[Run], width: int) -> Line:
    """Draws a line of the report: a label, padded to a common width, and the given runs."""
    return fit_marked(((f" {pad(label, _LABEL_CELLS)} ", "label"), *runs), width)


def text_line(text: str, width: int, style: str = "text") -> Line:
    return fit_marked(((f" {text}", style),), width)


def place_label(place: SourceLine | None) -> str:
    """Returns a source line as printable text, with the file name but without its directory."""
    return UNKNOWN_LINE if place is None else printable_name(source_text(place))


def printable_name(text: str) -> str:
    """Escapes control characters of a name from a profile, and limits its length."""
    return escape_controls(text[:_LONGEST_NAME])


def flop_text(flops: float) -> str:
    """Formats a number of floating-point operations, such as "1.5 GFLOP"."""
    return flops_text(flops).replace("FLOPS", "FLOP")


def title_lines(report: RunReport, width: int) -> list[Line]:
    """Draws the title of the report: script, instance type, ranks, steps, start time, failures and origin of times."""
    first = report.ranks[0].profile.metadata
    hosts = len({rank.profile.metadata.host for rank in report.ranks})
    owners = sorted({rank.profile.owner for rank in report.ranks if rank.profile.owner is not None})
    began = date_text(first.began_ns / 1e9)
    where = f" on {counted(hosts, 'host')}" if hosts > 1 else ""
    instance_type = printable_name(first.instance_type or "unknown instance type")
    script_name = printable_name(first.script.rpartition("/")[2]) or "profile"
    runs: list[Run] = [
        (f" {script_name}", "strong"),
        (f" of user {printable_name(', '.join(owners))}" if owners else "", "warn"),
        (f", {instance_type}, {counted(len(report.ranks), 'rank')}{where}, ", "text"),
        (f"{counted(report.step_count, 'step')}, {began}", "text"),
    ]
    lines = [fit_marked(runs, width)]
    lines.append(text_line(f"{printable_name(first.device_time)}; counts, FLOPs and bytes are exact", width, "dim"))
    lines += [text_line(text, width, "dim") for text in _topology_texts(report)]
    return lines + [
        text_line(f"rank {rank.number} failed: {printable_name(failure)}", width, "bad")
        for rank in report.ranks
        if (failure := rank.profile.state.failure)
    ]


def _topology_texts(report: RunReport) -> Iterator[str]:
    """Yields the devices of the ranks, and the bytes of their collectives by link; nothing for one rank."""
    topology = report.topology
    if len(topology.ranks) < 2:
        return
    ranks_by_place: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for rank in topology.ranks:
        ranks_by_place.setdefault((rank.host, rank.devices), []).append(rank.rank)
    has_several_hosts = len({rank.host for rank in topology.ranks}) > 1
    places = [
        f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges_text(ranks)} on "
        f"{'device' if len(devices) == 1 else 'devices'} {ranges_text(devices) if devices else UNKNOWN}"
        f"{f' of {printable_name(host)}' if has_several_hosts else ''}"
        for (host, devices), ranks in ranks_by_place.items()
    ]
    yield ", ".join(places)
    sizes = [f"{iec_bytes_text(size)} {_LINK_TEXTS[kind]}" for kind, size in topology.collective_bytes.items()]
    if sizes:
        yield f"collectives send {', '.join(sizes)}"


_LINK_TEXTS = {
    LinkKind.DEVICE: "within devices",
    LinkKind.NEURONLINK: "over NeuronLink",
    LinkKind.NETWORK: "over the network",
    None: "over unknown links",
}


def verdict_lines(verdict: RunVerdict | None, width: int, glyphs: Glyphs) -> list[Line]:
    """Draws the verdict: the causes of the duration of a step with their shares, lines and next steps."""
    if verdict is None:
        return []
    note = f"{percent_text(verdict.ratio, 0)} of {verdict.unit}"
    lines = [section_heading(f"Verdict: {verdict.bound}", note, width, glyphs)]
    for each in verdict.causes:
        place = "" if each.place is None else f" ({place_label(each.place)})"
        shares = (
            f" {cell(percent_text(each.ratio, 1), 6, right=True)} {cell(duration_text(each.seconds), 9, right=True)}  "
        )
        lines.append(fit_marked(((shares, "strong"), (printable_name(each.text), "text"), (place, "label")), width))
        next_step = textwrap.wrap(each.next_step, max(_LEAST_TEXT_CELLS, width - len(shares) - len(_DO)))
        for number, text in enumerate(next_step):
            label = " " * len(_DO) if number else _DO
            lines.append(fit_marked(((" " * len(shares), "text"), (label, "warn"), (text, "text")), width))
    return lines


def step_lines(report: RunReport, width: int, glyphs: Glyphs) -> list[Line]:
    """Draws the section on step time: time split, slow steps and use of the NeuronCores."""
    split = report.split
    times = [rank.times for rank in report.ranks if rank.times is not None]
    is_several = len(report.ranks) > 1
    without = "without the first step" if any(rank.first_step for rank in report.ranks) else ""
    note = ", ".join(filter(None, ("of all ranks" if is_several else "", without)))
    lines = [section_heading("Step time" if times else "Time", note, width, glyphs)]
    if times:
        middle, high = max(each.p50_seconds for each in times), max(each.p99_seconds for each in times)
        longest = max(each.longest_seconds for each in times)
        shown_text = f"p50 {duration_text(middle)}, p99 {duration_text(high)}, longest {duration_text(longest)}"
        rank_part = " (of the slowest rank)" if is_several else ""
        lines.append(labelled("per step", [(shown_text, "text"), (rank_part, "dim")], width))
    else:
        lines.append(text_line("no steps counted (no optimizer ran); times cover the whole profile", width, "dim"))
    for (part, seconds), style in zip(split.parts(), _PART_STYLES, strict=True):
        ratio = split.ratio(seconds)
        shown_text, a_step = percent_text(ratio, 1), duration_text(seconds / report.split_steps)
        shown = cell(shown_text, 7, right=True) + cell(a_step, 12, right=True)
        lines.append(labelled(part, [*bar(ratio, _BAR_CELLS, glyphs, style), (shown, "text")], width))
    firsts = [rank.first_step for rank in report.ranks if rank.first_step is not None]
    if firsts:
        begun = _slow_text(max(firsts, key=lambda each: each.seconds))
        lines.append(labelled("first step", [(begun, "text"), (" (includes startup)", "dim")], width))
    lines += [labelled("slow step", [(_slow_text(each), "text")], width) for each in _slow_steps(report)]
    lines.append(labelled("NeuronCores", [(_core_use_text(report), "text")], width))
    engines = {ENGINE_NAMES[engine]: seconds for engine, seconds in seconds_by_engine(report.operators).items()}
    phases = {phase.value: seconds for phase, seconds in report.seconds_by_phase.items()}
    for label, parts, remark in (("phases", phases, ""), ("engines", engines, " (inferred from operators' names)")):
        whole = sum(parts.values())
        if whole:
            shown_text = ", ".join(f"{name} {percent_text(seconds / whole, 1)}" for name, seconds in parts.items())
            lines.append(labelled(label, [(shown_text, "text"), (remark, "dim")], width))
    return lines


def rank_lines(report: RunReport, width: int, glyphs: Glyphs) -> list[Line]:
    """Draws the table of ranks; [] if the profile has a single rank."""
    if len(report.ranks) < 2:
        return []
    straggler = report.straggler
    note = "" if straggler is None else f"straggler: rank {straggler.number}"
    columns = fitting_columns(_RANK_COLUMNS, width)
    lines = [section_heading("Ranks", note, width, glyphs), title_line(columns, width)]
    return lines + [row_line(columns, rank, width) for rank in report.ranks]


def _slow_steps(report: RunReport) -> list[SlowStep]:
    """Returns slow steps of the rank that has the longest step: those that took more than twice its median step."""
    ranks = [rank for rank in report.ranks if rank.times is not None and rank.times.count > 2]
    if not ranks:
        return []
    rank = max(ranks, key=lambda each: each.slowest[0].seconds)
    usual = 0.0 if rank.times is None else rank.times.p50_seconds
    return [each for each in rank.slowest if each.seconds > 2 * usual]


def slow_step_text(slow: SlowStep) -> str:
    """Returns the duration of a step and the part that took longest: "step 7 took 1.2 s: compile 1.1 s"."""
    part, seconds = max(slow.split.parts(), key=lambda each: each[1])
    return f"step {count_text(slow.step)} took {duration_text(slow.seconds)}: {part} {duration_text(seconds)}"


def _slow_text(slow: SlowStep) -> str:
    seconds = max(seconds for _, seconds in slow.split.parts())
    return f"{slow_step_text(slow)}, {percent_text(slow.split.ratio(seconds), 0)}"


def _core_use_text(report: RunReport) -> str:
    busy = report.split.busy_ratio
    idle = None if busy is None else 1.0 - busy
    rate, mfu = flops_text(report.flops_per_second), percent_text(report.mfu_ratio, 4)
    return f"busy {percent_text(busy, 1)}, idle {percent_text(idle, 1)}; {rate}, MFU {mfu} of the bf16 peak"


def _part_text(position: int, rank: RankReport) -> str:
    return percent_text(rank.split.ratio(rank.split.parts()[position][1]), 1)


def _dropped_text(rank: RankReport) -> str:
    dropped = sum(rank.profile.state.dropped.values())
    return short_count_text(dropped, _DROPPED_CELLS) if dropped else ""


_RANK_COLUMNS: tuple[TableColumn[RankReport], ...] = (
    TableColumn("RANK", 5, 0, lambda rank: str(rank.number)),
    TableColumn("HOST", 12, 7, lambda rank: printable_name(rank.profile.metadata.host), True),
    TableColumn("CORES", 7, 3, lambda rank: ranges_text(rank.profile.metadata.cores) or UNKNOWN, True),
    count_column("STEPS", 8, 2, lambda rank: len(rank.profile.steps)),
    TableColumn("P50", 9, 0, lambda rank: duration_text(None if rank.times is None else rank.times.p50_seconds)),
    TableColumn("P99", 9, 4, lambda rank: duration_text(None if rank.times is None else rank.times.p99_seconds)),
    TableColumn("INPUT", 6, 2, lambda rank: _part_text(0, rank)),
    TableColumn("HOST TR", 7, 1, lambda rank: _part_text(1, rank)),
    TableColumn("COMPILE", 7, 1, lambda rank: _part_text(2, rank)),
    TableColumn("TRANSFER", 8, 2, lambda rank: _part_text(3, rank)),
    TableColumn("EXECUTE", 7, 1, lambda rank: _part_text(4, rank)),
    TableColumn("COLLECT", 7, 1, lambda rank: _part_text(5, rank)),
    TableColumn("BUSY", 6, 0, lambda rank: percent_text(rank.split.busy_ratio, 1)),
    TableColumn("HBM PEAK", 10, 3, lambda rank: iec_bytes_text(rank.hbm_peak_bytes)),
    TableColumn("DROPPED", _DROPPED_CELLS, 8, _dropped_text),
)


OPERATOR_ORDERS: tuple[tuple[str, Callable[[OperatorUse], float]], ...] = (
    ("time", lambda use: use.seconds),
    ("FLOPs", lambda use: use.flops),
    ("bytes", lambda use: use.bytes),
)


@dataclass(frozen=True, slots=True)
class _OperatorRow:
    """A row of an operator table: an operator, and its share of the total time, FLOPs or bytes."""

    use: OperatorUse
    share_ratio: float | None
    spread: str  # ratio of the time on the slowest rank to the time on the fastest rank, such as "1.2x"


def operator_lines(report: RunReport, width: int, glyphs: Glyphs, most: int) -> list[Line]:
    """Draws three tables of operators, by time, FLOPs and bytes, each with at most `most` rows."""
    lines: list[Line] = []
    for order, quantity in OPERATOR_ORDERS:
        whole = math.fsum(map(quantity, report.operators))
        uses = largest_uses(report.operators, quantity, most)
        columns = fitting_columns(_operator_columns(len(report.ranks) > 1), width)
        more = len(report.operators) - len(uses)
        note = f"{len(report.operators)} in total" if more else ""
        lines += [section_heading(f"Operators by {order}", note, width, glyphs)]
        if not uses:
            lines.append(text_line(f"no operator has {order}", width, "dim"))
            continue
        lines.append(title_line(columns, width))
        rows = (_OperatorRow(use, quantity(use) / whole if whole else None, _spread_text(use)) for use in uses)
        lines += [row_line(columns, row, width) for row in rows]
    return lines


def operator_label(use: OperatorUse) -> str:
    """Returns the printable name of an operator, with "(backward)" if it computes gradients."""
    return f"{printable_name(use.name).removeprefix('aten::')}{' (backward)' if use.is_backward else ''}"


def _spread_text(use: OperatorUse) -> str:
    """Returns the ratio of the time on the slowest rank to the time on the fastest rank, such as "1.2x"."""
    times = [seconds for seconds in use.seconds_by_rank if seconds > 0]
    return f"{max(times) / min(times):.1f}x" if len(times) > 1 else UNKNOWN


def _operator_columns(is_several: bool) -> tuple[TableColumn[_OperatorRow], ...]:
    columns: tuple[TableColumn[_OperatorRow], ...] = (
        TableColumn("SHARE", 6, 0, lambda row: percent_text(row.share_ratio, 1)),
        TableColumn("TIME", 10, 1, lambda row: duration_text(row.use.seconds)),
        count_column("COUNT", 10, 4, lambda row: row.use.count),
        TableColumn(
            "MEAN", 9, 5, lambda row: duration_text(row.use.seconds / row.use.count if row.use.count else None)
        ),
        TableColumn("FLOP", 11, 2, lambda row: flop_text(row.use.flops) if row.use.flops else "0"),
        TableColumn("BYTES", 10, 2, lambda row: iec_bytes_text(row.use.bytes)),
        TableColumn("ENGINE", 11, 6, lambda row: ENGINE_NAMES[row.use.engine], True),
        TableColumn("OPERATOR", 34, 0, lambda row: operator_label(row.use), True),
        TableColumn("LINE", 24, 0, lambda row: place_label(row.use.place), True),
        TableColumn("RESULT", 0, 7, lambda row: printable_name(row.use.main_result) or UNKNOWN, True),
    )
    spread: TableColumn[_OperatorRow] = TableColumn("RANKS", 6, 3, lambda row: row.spread)
    ranks = (spread,) if is_several else ()
    return (*columns[:4], *ranks, *columns[4:])


def module_lines(report: RunReport, width: int, glyphs: Glyphs, most: int) -> list[Line]:
    """Draws the table of the `most` modules and optimizers by time; [] if no operator has a module."""
    modules = report.modules
    if not any(use.name for use in modules):
        return []
    whole = sum(use.total_seconds for use in modules)
    note = f"{len(modules)} in total" if len(modules) > most else ""
    columns = fitting_columns(_MODULE_COLUMNS, width)
    rows = (_ModuleRow(use, use.total_seconds / whole if whole else None) for use in modules[:most])
    return [
        section_heading("Modules by time", note, width, glyphs),
        title_line(columns, width),
        *(row_line(columns, row, width) for row in rows),
    ]


@dataclass(frozen=True, slots=True)
class _ModuleRow:
    use: ModuleUse
    share_ratio: float | None


def _phase_column(phase: Phase, order: int) -> TableColumn[_ModuleRow]:
    return TableColumn(phase.name, 11, order, lambda row: duration_text(row.use.seconds.get(phase)))


_MODULE_COLUMNS: tuple[TableColumn[_ModuleRow], ...] = (
    TableColumn("SHARE", 6, 0, lambda row: percent_text(row.share_ratio, 1)),
    TableColumn("TIME", 10, 1, lambda row: duration_text(row.use.total_seconds)),
    _phase_column(Phase.FORWARD, 3),
    _phase_column(Phase.BACKWARD, 3),
    TableColumn("FLOP", 11, 2, lambda row: flop_text(row.use.flops) if row.use.flops else "0"),
    TableColumn("MODULE", 0, 0, lambda row: printable_name(row.use.name) or "outside of modules", True),
)


def graph_lines(report: RunReport, width: int, glyphs: Glyphs, most: int) -> list[Line]:
    """Draws the table of the `most` graphs that took longest to compile, in the order of their first step."""
    graphs = report.graphs
    compiled = [graph for graph in graphs if not graph.was_cached]
    seconds = sum(graph.compile_seconds or 0.0 for graph in graphs)
    note = f"{counted(len(graphs), 'graph')}, {len(compiled)} compiled, {duration_text(seconds)}"
    lines = [section_heading("Graphs", note, width, glyphs)]
    if not graphs:
        return [*lines, text_line("nothing was executed", width, "dim")]
    shown = sorted(graphs, key=lambda graph: -(graph.compile_seconds or 0.0))[:most]
    columns = fitting_columns(_GRAPH_COLUMNS, width)
    lines.append(title_line(columns, width))
    for graph in graphs:
        if graph in shown:
            lines.append(row_line(columns, graph, width))
            why = f"{'':{_SHORT_HASH + 1}}why: {printable_name(graph.reason) or UNKNOWN}"
            lines.append(text_line(why, width, "dim"))
    left = len(graphs) - len(shown)
    if left:
        lines.append(text_line(f"{glyphs.ellipsis} {counted(left, 'graph')} more", width, "dim"))
    return lines


def cached_text(graph: GraphUse) -> str:
    """Returns "compiled" or, for a graph from the compile cache, "cached"; "-" if unknown."""
    return UNKNOWN if graph.was_cached is None else "cached" if graph.was_cached else "compiled"


_GRAPH_COLUMNS: tuple[TableColumn[GraphUse], ...] = (
    TableColumn("GRAPH", _SHORT_HASH, 0, lambda graph: printable_name(graph.hash_text)[:_SHORT_HASH], True),
    count_column("STEP", 7, 0, lambda graph: graph.first_step),
    TableColumn("COMPILE", 9, 0, lambda graph: duration_text(graph.compile_seconds)),
    TableColumn("CACHE", 8, 3, cached_text, True),
    count_column("RUNS", 9, 1, lambda graph: graph.executions),
    TableColumn("TIME", 10, 1, lambda graph: duration_text(graph.seconds)),
    count_column("OPS", 6, 4, lambda graph: graph.operator_count),
    TableColumn("FLOP", 12, 4, lambda graph: flop_text(graph.flops) if graph.flops else "0"),
    TableColumn("LINE", 0, 2, lambda graph: place_label(graph.place), True),
)


def memory_lines(report: RunReport, width: int, glyphs: Glyphs, most: int) -> list[Line]:
    """Draws the section on HBM: use by category and source line, at the highest peak of all ranks."""
    rank = report.highest
    found, limit = rank.peak, rank.profile.metadata.hbm_limit_bytes
    of_limit = "" if not limit else f" of {iec_bytes_text(limit)}"
    rank_part = f", rank {rank.number}" if len(report.ranks) > 1 else ""
    core_part = "" if found is None else f", core {found.core}"
    note = f"peak {iec_bytes_text(rank.hbm_peak_bytes)}{of_limit}{rank_part}{core_part}"
    lines = [section_heading("Memory", note, width, glyphs)]
    if found is None:
        return [*lines, text_line("time of the peak not recorded", width, "dim")]
    if found.highest_bytes > found.bytes:
        shown_text = f"peak details were discarded; this is the highest retained level, {iec_bytes_text(found.bytes)}"
        lines.append(text_line(shown_text, width, "warn"))
    categories = sorted(found.by_category.items(), key=lambda each: -each[1])
    shown_text = ", ".join(f"{category_text(key)} {iec_bytes_text(size)}" for key, size in categories if size)
    lines.append(labelled("categories", [(shown_text, "text")], width))
    columns = fitting_columns(_SHARE_COLUMNS, width)
    if found.shares:
        lines.append(title_line(columns, width))
    lines += [row_line(columns, share, width) for share in found.shares[:most]]
    rest = found.shares[most:]
    if rest:
        size = iec_bytes_text(sum(share.bytes for share in rest))
        lines.append(text_line(f"{glyphs.ellipsis} {counted(len(rest), 'more line')}, {size}", width, "dim"))
    return lines


def collective_lines(report: RunReport, width: int, glyphs: Glyphs) -> list[Line]:
    """Draws the table of collectives with their time on all ranks; [] if the run had no collectives."""
    uses = report.collectives
    if not uses:
        return []
    columns = fitting_columns(_COLLECTIVE_COLUMNS, width)
    note = "times include the wait for other ranks, bytes are in and out"
    lines = [section_heading("Collectives", note, width, glyphs), title_line(columns, width)]
    lines += [row_line(columns, use, width) for use in uses]
    straggler = report.straggler
    if straggler is not None:
        ratio = percent_text(straggler.split.ratio(straggler.split.collective_seconds), 1)
        shown_text = f"straggler: rank {straggler.number} waits least in collectives ({ratio} of its time)"
        lines.append(text_line(shown_text, width, "warn"))
    return lines


def named_span_lines(report: RunReport, width: int, glyphs: Glyphs, most: int) -> list[Line]:
    """Draws the spans that the script names, inner ones indented below their outer one; [] if there are none."""
    uses = report.named_spans
    if not uses:
        return []
    columns = fitting_columns(_NAMED_SPAN_COLUMNS, width)
    lines = [section_heading("Named spans", NAMED_SPAN_NOTE, width, glyphs), title_line(columns, width)]
    lines += [row_line(columns, use, width) for use in uses[:most]]
    if (rest := len(uses) - most) > 0:
        lines.append(text_line(f"{glyphs.ellipsis} {counted(rest, 'more span')}", width, "dim"))
    return lines


NAMED_SPAN_NOTE = "by xp.Trace, all ranks; outer spans include their inner ones"


def named_span_label(use: NamedSpanUse) -> str:
    return "  " * use.depth + printable_name(use.path[-1])


_NAMED_SPAN_COLUMNS: tuple[TableColumn[NamedSpanUse], ...] = (
    count_column("COUNT", 10, 1, lambda use: use.count),
    TableColumn("TIME", 10, 0, lambda use: duration_text(use.seconds)),
    TableColumn("LONGEST", 10, 2, lambda use: duration_text(use.longest_seconds)),
    TableColumn("NAME", 0, 0, named_span_label, True),
)


def link_lines(topology: Topology, width: int, glyphs: Glyphs, most: int) -> list[Line]:
    """Draws the table of the bytes that moved over each link, the most first; [] if none were recorded."""
    if not topology.links:
        return []
    columns = fitting_columns(_LINK_COLUMNS, width)
    lines = [section_heading("Links", LINK_NOTE, width, glyphs), title_line(columns, width)]
    lines += [row_line(columns, link, width) for link in topology.links[:most]]
    rest = topology.links[most:]
    if rest:
        size = iec_bytes_text(sum(link.bytes for link in rest))
        lines.append(text_line(f"{glyphs.ellipsis} {counted(len(rest), 'more link')}, {size}", width, "dim"))
    return lines


LINK_NOTE = "collectives calculated for rings in the order of the ranks"


def place_text(place: Place) -> str:
    """Returns the host and the device of a place as printable text, such as "vm, device 3"."""
    device = "" if place.device is None else f", device {place.device}"
    return f"{printable_name(place.host)}{device}"


def link_kind_text(link: LinkUse) -> str:
    return UNKNOWN if link.kind is None else link.kind.value


_LINK_COLUMNS: tuple[TableColumn[LinkUse], ...] = (
    TableColumn("BYTES", 10, 0, lambda link: iec_bytes_text(link.bytes)),
    TableColumn("LINK", 18, 0, link_kind_text, True),
    TableColumn("FROM", 28, 0, lambda link: place_text(link.source), True),
    TableColumn("TO", 0, 0, lambda link: place_text(link.target), True),
)


def category_text(category: str) -> str:
    return category.replace("_", " ")


def _share_line_text(share: LineMemory) -> str:
    if share.place is None:
        return UNKNOWN_LINE
    return f"{place_label(share.place)} {printable_name(share.place.function)}"


_SHARE_COLUMNS: tuple[TableColumn[LineMemory], ...] = (
    TableColumn("BYTES", 10, 0, lambda share: iec_bytes_text(share.bytes)),
    count_column("COUNT", 8, 1, lambda share: share.count),
    TableColumn("CATEGORY", 18, 1, lambda share: category_text(share.category), True),
    TableColumn("LINE", 0, 0, _share_line_text, True),
)


_COLLECTIVE_COLUMNS: tuple[TableColumn[CollectiveUse], ...] = (
    TableColumn("COLLECTIVE", 32, 0, lambda use: printable_name(use.name), True),
    count_column("COUNT", 10, 1, lambda use: use.count),
    TableColumn("BYTES", 10, 1, lambda use: iec_bytes_text(use.bytes)),
    TableColumn("TIME", 10, 0, lambda use: duration_text(use.seconds)),
    TableColumn("SHORTEST", 10, 2, lambda use: duration_text(min(use.seconds_by_rank))),
    TableColumn("LONGEST", 10, 2, lambda use: duration_text(max(use.seconds_by_rank))),
)
