"""The report on a profile as a single HTML page with SVG charts, which loads no other files and runs no script."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence

from neurontools.profile import Profile
from neurontools.profile.analysis.evidence import profile_evidence
from neurontools.profile.analysis.memory import levels_over_time
from neurontools.profile.analysis.operators import (
    OperatorUse,
    build_flame_tree,
    largest_uses,
    seconds_by_engine,
    source_text,
)
from neurontools.profile.analysis.report import RankReport, RunReport
from neurontools.profile.analysis.steps import (
    NS_PER_SECOND,
    PART_NAMES,
    group_steps,
    latest_steps_timeline,
)
from neurontools.profile.analysis.verdict import find_verdict
from neurontools.profile.definitions import CATEGORIES, ENGINE_NAMES
from neurontools.util.formats import Markup, element, join_markup
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
)
from neurontools.util.version import __version__
from neurontools.views.profile_charts import (
    colour_key,
    flame_graph,
    lane_chart,
    part_bar,
    share_bars,
    stacked_area_chart,
    stacked_column_chart,
)
from neurontools.views.profile_report import (
    LINK_NOTE,
    NAMED_SPAN_NOTE,
    OPERATOR_ORDERS,
    cached_text,
    category_text,
    flop_text,
    link_kind_text,
    named_span_label,
    operator_label,
    place_label,
    place_text,
    slow_step_text,
)

_MOST_STRETCHES = 200
_MOST_LEVELS = 400
_MOST_OPERATORS = 20
_MOST_GRAPHS = 100
_MOST_SHARES = 20
_MOST_RANK_CHARTS = 16
_MOST_RANK_COLUMNS = 8
_SHOWN_STEPS = 3
TableCell = tuple[str, str]  # text and CSS class of a table cell; the class is "", "text" or "text wide"


def profile_web_page(report: RunReport) -> str:
    """Returns the HTML page of the report. Escapes all names from the profile.

    The content security policy of the page forbids scripts and loading other files.
    """
    script = report.ranks[0].profile.metadata.script.rpartition("/")[2] or "a training run"
    digest = b64encode(hashlib.sha256(STYLE_SHEET.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"Profile of {script}"),
        Markup(f"<style>{STYLE_SHEET}</style>"),
    )
    body = element(
        "body",
        *_title_section(report, script),
        *_verdict_section(report),
        *_step_section(report),
        *_timeline_section(report),
        *_rank_section(report),
        *_operator_section(report),
        *_memory_section(report),
        *_collective_section(report),
        *_named_span_section(report),
        *_link_section(report),
        *_graph_section(report),
        element("p", f"made by neuron-profile {__version__}", class_="dim"),
    )
    return f'<!DOCTYPE html>\n<html lang="en">{head}{body}</html>\n'


def _title_section(report: RunReport, script: str) -> Iterator[Markup]:
    first, split = report.ranks[0].profile.metadata, report.split
    began = date_text(first.began_ns / NS_PER_SECOND)
    parts = (first.instance_type or "unknown instance type", counted(len(report.ranks), "rank"), began)
    yield element("h1", script)
    yield element("p", ", ".join(parts), class_="dim")
    yield element("p", f"{first.device_time}; counts, FLOPs and bytes are exact", class_="dim")
    for rank in report.ranks:
        if rank.profile.state.failure:
            yield element("p", f"rank {rank.number} failed: {rank.profile.state.failure}", class_="bad")
        if rank.incomplete_reason:
            yield element("p", f"the profile of rank {rank.number} {rank.incomplete_reason}", class_="warn")
    times = [rank.times for rank in report.ranks if rank.times is not None]
    facts = [
        ("steps", count_text(report.step_count)),
        ("step, p50", duration_text(max((each.p50_seconds for each in times), default=None))),
        ("step, p99", duration_text(max((each.p99_seconds for each in times), default=None))),
        ("NeuronCores busy", percent_text(split.busy_ratio, 1)),
        ("FLOPS", flops_text(report.flops_per_second)),
        ("MFU (bf16 peak)", percent_text(report.mfu_ratio, 4)),
        ("HBM peak", iec_bytes_text(report.highest.hbm_peak_bytes)),
        ("graphs", count_text(len(report.graphs))),
    ]
    shown_text = (element("div", element("span", name), element("b", value)) for name, value in facts)
    yield element("div", *shown_text, class_="facts")


def _verdict_section(report: RunReport) -> Iterator[Markup]:
    verdict = find_verdict(profile_evidence(report))
    if verdict is None:
        return
    yield element("h2", f"Verdict: {verdict.bound}")
    rows = [
        (
            (percent_text(each.ratio, 1), ""),
            (duration_text(each.seconds), ""),
            (each.text, "text"),
            ("" if each.place is None else source_text(each.place), "text"),
            (each.next_step, "text wide"),
        )
        for each in verdict.causes
    ]
    yield _table(("share", "time of a step" if verdict.has_steps else "time", "cause", "line", "next step"), rows)


def _step_section(report: RunReport) -> Iterator[Markup]:
    yield element("h2", "Step time")
    split, count = report.split, report.split_steps
    parts = split.parts()
    firsts = [(rank, rank.first_step) for rank in report.ranks if rank.first_step is not None]
    if firsts:
        yield element("p", "step figures exclude the first step, which includes startup", class_="dim")
    shares = [
        f"{name}: {percent_text(split.ratio(seconds), 1)}, {duration_text(seconds / count)} a step"
        for name, seconds in parts
    ]
    yield part_bar([seconds for _, seconds in parts], shares)
    yield colour_key(shares)
    for rank in report.ranks[:_MOST_RANK_CHARTS]:
        groups = group_steps(rank.steps, _MOST_STRETCHES)
        if not groups:
            continue
        length = groups[0].last_step - groups[0].first_step + 1
        mean = f", each column the mean of {counted(length, 'step')}" if length > 1 else ""
        text = f"{_rank_name(report, rank)}steps in order{mean}; cut columns are marked"
        yield element("p", text, class_="dim")
        titles = [
            f"{_steps_text(each.first_step, each.last_step)}: {duration_text(each.mean.total_seconds)}; "
            + ", ".join(f"{name} {duration_text(seconds)}" for name, seconds in each.mean.parts())
            for each in groups
        ]
        yield stacked_column_chart(
            [[seconds for _, seconds in each.mean.parts()] for each in groups],
            titles,
            height=180.0,
            value_text=duration_text,
            left_text=f"step {count_text(groups[0].first_step)}",
            right_text=f"step {count_text(groups[-1].last_step)}",
        )
    for rank, first in firsts[:_MOST_RANK_CHARTS]:
        yield element("p", f"{_rank_name(report, rank)}{slow_step_text(first)}")
    for rank in report.ranks[:_MOST_RANK_CHARTS]:
        usual = 0.0 if rank.times is None else rank.times.p50_seconds
        for slow in rank.slowest:
            if slow.seconds > 2 * usual:
                yield element("p", f"{_rank_name(report, rank)}{slow_step_text(slow)}")


def _timeline_section(report: RunReport) -> Iterator[Markup]:
    timeline = latest_steps_timeline(report.profiles[:_MOST_RANK_CHARTS], _SHOWN_STEPS)
    if timeline is None:
        return
    yield element("h2", f"The latest steps, {_steps_text(timeline.first_step, timeline.last_step)}, on one clock")
    yield lane_chart(timeline)
    yield colour_key(PART_NAMES)


def _rank_section(report: RunReport) -> Iterator[Markup]:
    if len(report.ranks) < 2:
        return
    yield element("h2", "Ranks")
    titles = ["rank", "host", "cores", "steps", "p50", "p99", *PART_NAMES, "busy", "MFU", "HBM peak"]
    rows = [
        [
            (str(rank.number), ""),
            (rank.profile.metadata.host, "text"),
            (ranges_text(rank.profile.metadata.cores) or UNKNOWN, "text"),
            (count_text(len(rank.profile.steps)), ""),
            (duration_text(None if rank.times is None else rank.times.p50_seconds), ""),
            (duration_text(None if rank.times is None else rank.times.p99_seconds), ""),
            *((percent_text(rank.split.ratio(seconds), 1), "") for _, seconds in rank.split.parts()),
            (percent_text(rank.split.busy_ratio, 1), ""),
            (percent_text(rank.mfu_ratio, 4), ""),
            (iec_bytes_text(rank.hbm_peak_bytes), ""),
        ]
        for rank in report.ranks
    ]
    yield _table(titles, rows)


def _operator_section(report: RunReport) -> Iterator[Markup]:
    yield element("h2", "Operators by module and line")
    if not report.operators:
        yield element("p", "nothing was executed", class_="dim")
        return
    yield element("p", "width is time; hover for details", class_="dim")
    yield flame_graph(build_flame_tree(report.profiles))
    engines = seconds_by_engine(report.operators)
    whole = sum(engines.values()) or 1.0
    shown_text = [f"{ENGINE_NAMES[engine]} {percent_text(seconds / whole, 1)}" for engine, seconds in engines.items()]
    yield element("p", f"engines, inferred from operators' names: {', '.join(shown_text)}", class_="dim")
    for name, quantity in OPERATOR_ORDERS:
        yield element("h2", f"Operators by {name}")
        yield _operator_table(report, quantity)


def _operator_table(report: RunReport, quantity: Callable[[OperatorUse], float]) -> Markup:
    whole = sum(map(quantity, report.operators)) or 1.0
    several = report.ranks if 1 < len(report.ranks) <= _MOST_RANK_COLUMNS else ()
    titles = ["share", "time", "count", "FLOP", "bytes", "engine", "operator", "line", "result"]
    titles += [f"rank {rank.number}" for rank in several]
    rows = [
        [
            (percent_text(quantity(use) / whole, 1), ""),
            (duration_text(use.seconds), ""),
            (count_text(use.count), ""),
            (flop_text(use.flops) if use.flops else "0", ""),
            (iec_bytes_text(use.bytes), ""),
            (ENGINE_NAMES[use.engine], "text"),
            (operator_label(use), "text wide"),
            (place_label(use.place), "text"),
            (use.main_result, "text"),
            *((duration_text(seconds), "") for seconds in (use.seconds_by_rank if several else ())),
        ]
        for use in largest_uses(report.operators, quantity, _MOST_OPERATORS)
    ]
    return _table(titles, rows)


def _memory_section(report: RunReport) -> Iterator[Markup]:
    rank = report.highest
    found, limit = rank.peak, rank.profile.metadata.hbm_limit_bytes
    yield element("h2", "Memory")
    of_limit = "" if not limit else f" of {iec_bytes_text(limit)}"
    yield element(
        "p", f"{_rank_name(report, rank)}peak {iec_bytes_text(rank.hbm_peak_bytes)}{of_limit} of a NeuronCore"
    )
    if found is None:
        yield element("p", "time of the peak not recorded", class_="dim")
        return
    if found.highest_bytes > found.bytes:
        yield element(
            "p", f"peak details were discarded; the chart reaches {iec_bytes_text(found.bytes)}", class_="warn"
        )
    yield from _memory_chart(rank.profile, found.core)
    if found.shares:
        yield element("p", "memory at the peak:")
        rows = [
            [
                (iec_bytes_text(share.bytes), ""),
                (count_text(share.count), ""),
                (category_text(share.category), "text"),
                (place_label(share.place), "text"),
                ("" if share.place is None else share.place.function, "text wide"),
            ]
            for share in found.shares[:_MOST_SHARES]
        ]
        yield _table(["bytes", "storages", "category", "line", "function"], rows)


def _memory_chart(profile: Profile, core: int) -> Iterator[Markup]:
    levels = levels_over_time(profile, core, _MOST_LEVELS)
    if not levels:
        return
    span = duration_text((levels[-1].at_ns - levels[0].at_ns) / NS_PER_SECOND)
    yield stacked_area_chart(
        [float(level.at_ns) for level in levels],
        [level.bytes for level in levels],
        height=200.0,
        value_text=lambda value: iec_bytes_text(round(value)),
        left_text=f"NeuronCore {core}, HBM by category",
        right_text=f"{span} later",
    )
    yield colour_key([category_text(category) for category in CATEGORIES])


def _collective_section(report: RunReport) -> Iterator[Markup]:
    if not report.collectives:
        return
    yield element("h2", "Collectives")
    yield element("p", "times include the wait for other ranks, bytes are in and out", class_="dim")
    straggler = report.straggler
    if straggler is not None:
        yield element("p", f"straggler: rank {straggler.number} waits least in collectives", class_="warn")
    rows = [(f"rank {rank.number}", rank.split.collective_seconds, _collective_text(rank)) for rank in report.ranks]
    yield share_bars(rows, 5)
    several = report.ranks if len(report.ranks) <= _MOST_RANK_COLUMNS else ()
    yield _table(
        ["collective", "count", "bytes", "time", *(f"rank {rank.number}" for rank in several)],
        [
            [
                (use.name, "text"),
                (count_text(use.count), ""),
                (iec_bytes_text(use.bytes), ""),
                (duration_text(use.seconds), ""),
                *((duration_text(seconds), "") for seconds in (use.seconds_by_rank if several else ())),
            ]
            for use in report.collectives
        ],
    )


def _named_span_section(report: RunReport) -> Iterator[Markup]:
    if not report.named_spans:
        return
    yield element("h2", "Named spans")
    yield element("p", NAMED_SPAN_NOTE, class_="dim")
    rows: list[list[TableCell]] = [
        [
            (named_span_label(use).replace("  ", "\u2003"), "text"),
            (count_text(use.count), ""),
            (duration_text(use.seconds), ""),
            (duration_text(use.longest_seconds), ""),
        ]
        for use in report.named_spans
    ]
    yield _table(["span", "count", "time", "longest"], rows)


def _link_section(report: RunReport) -> Iterator[Markup]:
    topology = report.topology
    if not topology.links:
        return
    yield element("h2", "Ranks and links")
    rows = [
        [
            (str(rank.rank), ""),
            (rank.host, "text"),
            (ranges_text(rank.devices) if rank.devices else UNKNOWN, ""),
            (ranges_text(rank.cores) if rank.cores else UNKNOWN, ""),
        ]
        for rank in topology.ranks
    ]
    yield _table(["rank", "host", "devices", "cores"], rows)
    yield element("p", LINK_NOTE, class_="dim")
    yield _table(
        ["bytes", "link", "from", "to"],
        [
            [
                (iec_bytes_text(link.bytes), ""),
                (link_kind_text(link), "text"),
                (place_text(link.source), "text"),
                (place_text(link.target), "text"),
            ]
            for link in topology.links
        ],
    )


def _collective_text(rank: RankReport) -> str:
    seconds = rank.split.collective_seconds
    return f"{duration_text(seconds)}, {percent_text(rank.split.ratio(seconds), 1)} of its steps"


def _graph_section(report: RunReport) -> Iterator[Markup]:
    yield element("h2", "Graphs, and why each was compiled")
    shown = sorted(report.graphs, key=lambda graph: -(graph.compile_seconds or 0.0))[:_MOST_GRAPHS]
    rows = [
        [
            (graph.hash_text[:12], "text"),
            (count_text(graph.first_step), ""),
            (duration_text(graph.compile_seconds), ""),
            (cached_text(graph), "text"),
            (count_text(graph.executions), ""),
            (duration_text(graph.seconds), ""),
            (count_text(graph.operator_count), ""),
            (flop_text(graph.flops) if graph.flops else "0", ""),
            (place_label(graph.place), "text"),
            (graph.reason or UNKNOWN, "text wide"),
        ]
        for graph in report.graphs
        if graph in shown
    ]
    titles = ["graph", "step", "compile", "cache", "runs", "time", "operators", "FLOP", "line", "why"]
    yield _table(titles, rows)
    if len(report.graphs) > len(shown):
        yield element("p", f"and {counted(len(report.graphs) - len(shown), 'graph')} more", class_="dim")


def _table(titles: Sequence[str], rows: Sequence[Sequence[TableCell]]) -> Markup:
    """Returns an HTML table whose titles are aligned like their columns."""
    kinds = [kind.partition(" ")[0] for _, kind in rows[0]] if rows else [""] * len(titles)
    head = element("tr", *(element("th", title, class_=kind) for title, kind in zip(titles, kinds, strict=True)))
    body = join_markup(
        element("tr", *(element("td", shown_text, class_=kind) for shown_text, kind in row)) for row in rows
    )
    return element("div", element("table", head, body), class_="scroll")


def _rank_name(report: RunReport, rank: RankReport) -> str:
    return f"rank {rank.number}: " if len(report.ranks) > 1 else ""


def _steps_text(first: int, last: int) -> str:
    return f"step {count_text(first)}" if first == last else f"steps {count_text(first)} to {count_text(last)}"


STYLE_SHEET = """
:root { color-scheme: light dark; --text: #1f2328; --dim: #59636e; --rule: #d1d9e0; --ground: #ffffff; --row: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --text: #d8dee4; --dim: #8b949e; --rule: #3d444d; --ground: #0d1117; --row: #161b22; }
}
body { color: var(--text); background: var(--ground); font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 1160px; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; }
p { margin: .3rem 0; } .dim { color: var(--dim); } .bad { color: #cf222e; } .warn { color: #9a6700; }
@media (prefers-color-scheme: dark) { .bad { color: #ff7b72; } .warn { color: #e3b341; } }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 600; color: var(--dim); border-bottom: 1px solid var(--rule); }
td { text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th, td { padding: .15rem .5rem; } tr:hover td { background: var(--row); }
th.text, td.text { text-align: left; } td.wide { white-space: normal; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; } figure { margin: .5rem 0; } svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--text); font: 11px system-ui, sans-serif; } svg text.dim { fill: var(--dim); }
svg .in { fill: #ffffff; font-size: 11px; } .grid { stroke: var(--rule); stroke-width: 1; }
.facts { display: flex; flex-wrap: wrap; gap: .5rem 2rem; margin: 1rem 0; }
.facts div span { display: block; color: var(--dim); } .facts div b { font-size: 1.2rem; }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; }
.key svg { width: 12px; height: 12px; display: inline-block; }
.s0 { fill: #b58900; } .s1 { fill: #8c96a3; } .s2 { fill: #d1495b; } .s3 { fill: #4c86c6; } .s4 { fill: #2e8b57; }
.s5 { fill: #8e5ea2; }
.f0 { fill: #b4552d; } .f1 { fill: #a8651f; } .f2 { fill: #96731c; } .f3 { fill: #a04a4a; } .f4 { fill: #8a5a3c; }
.f5 { fill: #7d6608; } .backward { fill: #5b5ea6; } .lane { fill: var(--row); }
.cut { fill: var(--text); }
rect.frame { stroke: var(--ground); stroke-width: .6; }
"""
