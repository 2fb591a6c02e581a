"""The health page: the findings with their recommended actions, injected faults, and the event log."""

from __future__ import annotations

from neurontools.client.events import EventSeverity, HostEvent
from neurontools.faults.requests import describe_fault, injected_by
from neurontools.model.finding import Severity
from neurontools.model.health import group_alike, is_healthy, sentence, summary
from neurontools.util.units import clock_text, day_text, ranges_text
from neurontools.views.drawing.lines import (
    Line,
    Run,
    TextPage,
    clip,
    fit,
    fit_marked,
    line_width,
    printable,
)
from neurontools.views.drawing.plots import backfill_text
from neurontools.views.drawing.render_context import (
    RenderContext,
    SearchEntry,
    add_scrolled_list,
    heading,
    severity_mark,
    shown_devices,
    shown_events,
)

_STYLES = {Severity.OK: "good", Severity.NOTICE: "label", Severity.WARNING: "warn", Severity.CRITICAL: "bad"}
_EVENT_STYLES = {EventSeverity.INFO: "text", EventSeverity.WARNING: "warn", EventSeverity.CRITICAL: "bad"}


def health_page(context: RenderContext, width: int, height: int) -> TextPage:
    """Draws the findings, unknown values and injected faults, then the event log, newest event first."""
    verdicts = [*_verdict_lines(context, width), *_warning_lines(context, width), *_fault_lines(context, width)]
    room = max(3, height * 3 // 5)
    if len(verdicts) > room:
        hidden = len(verdicts) - room + 1
        verdicts = [*verdicts[: room - 1], fit(((f"   … {hidden} more lines", "dim"),), width)]
    events = list(reversed(shown_events(context, context.pid)))
    times = sum(event.times for event in events)
    count = "1 event" if times == 1 else f"{times} events"
    since = _history_start_text(context)
    note = backfill_text(context) or f"{count} since {since}{context.key_hint('; Enter: go to event')}"
    title = "Events" if context.pid is None else f"Events of PID {context.pid}"
    page = TextPage([*verdicts, heading(context, title, width, note)])
    add_scrolled_list(
        context,
        page,
        len(events),
        height - len(page.lines),
        lambda position: _event_line(context, events[position], width),
    )
    if not events:
        text = backfill_text(context) or f"no events since {since}"
        page.add_lines(fit_marked(((f"   {text}", "dim"),), width))
    return page


def _history_start_text(context: RenderContext) -> str:
    """Returns, as text, the time at which the known history starts."""
    since = context.clock.first_at_unix_seconds
    return clock_text(context.snapshot.taken_at_unix_seconds if since is None else since)


def event_entries(context: RenderContext) -> list[SearchEntry]:
    """Returns the events as search entries, newest first."""
    return [
        SearchEntry(str(number), f"{event.kind} {event.severity.name} {printable(event.text)}")
        for number, event in enumerate(reversed(shown_events(context, context.pid)))
    ]


def event_time_of_row(context: RenderContext, row: int) -> float | None:
    """Returns the time of the event in row `row` of the event log, in seconds on the timeline; None without a row."""
    events = shown_events(context, context.pid)
    return events[len(events) - 1 - row].at_seconds if 0 <= row < len(events) else None


def _verdict_lines(context: RenderContext, width: int) -> list[Line]:
    """Draws the findings on the devices that the current tab's process uses, or on all devices."""
    devices = shown_devices(context, context.pid)
    verdicts = [each for each in context.verdicts if devices is None or each.device_index in devices]
    subject_text = "Health" if context.pid is None else f"Health of the devices of PID {context.pid}"
    lines = [heading(context, f"{subject_text}: {summary(verdicts, context.snapshot)}", width)]
    if verdicts and is_healthy(verdicts) and not any(verdict.findings for verdict in verdicts):
        lines.append(fit(((f" {context.glyphs.good} ", "good"), ("nothing to do", "text")), width))
    shown = {verdict.device_index for verdict in verdicts}
    for finding, every in group_alike(finding for verdict in verdicts for finding in verdict.findings):
        indices = [device for device in every if device in shown]
        mark = severity_mark(context.glyphs, finding.severity).replace(" ", "i")
        style = _STYLES[finding.severity]
        head = (
            f" {mark:<2} ",
            f"{f'ND {ranges_text(indices)}' if indices else 'host':<9} ",
            f"{finding.severity.name.lower():<9}",
        )
        runs: list[Run] = [(text, style) for text in head]
        is_of_more = len(indices) > len(finding.device_indices)
        more = f" (ND {ranges_text(finding.device_indices)}; the others alike)" if is_of_more else ""
        text = clip(printable(sentence(finding, context.snapshot)) + more, width - 24, mark=True)
        lines.append(fit((*runs, (text, "text")), width))
        lines.append(fit((("    do: ", "dim"), (clip(printable(finding.action), width - 9, mark=True), "dim")), width))
    return lines


def _warning_lines(context: RenderContext, width: int) -> list[Line]:
    """Draws what the daemon could not read, so that its values are unknown."""
    warnings = context.snapshot.warnings
    if not warnings:
        return []
    lines = [heading(context, f"Unknown values: {len(warnings)}", width)]
    for warning in warnings:
        text = clip(printable(warning), width - 5, mark=True)
        lines.append(fit(((f" {context.glyphs.warn:<2} ", "warn"), (text, "text")), width))
    return lines


def _fault_lines(context: RenderContext, width: int) -> list[Line]:
    """Draws the faults injected into simulated devices, each with the user and process that injected it."""
    faults = context.snapshot.injected_faults
    if not faults:
        return []
    lines = [heading(context, f"Injected faults: {len(faults)}", width, "neuron-fault heal removes them")]
    for fault in faults:
        by = injected_by(fault)
        text = printable(describe_fault(fault)) + (f" (by {by})" if by else "")
        lines.append(fit(((f" {context.glyphs.warn:<2} ", "warn"), (clip(text, width - 5, mark=True), "text")), width))
    return lines


def _event_line(context: RenderContext, event: HostEvent, width: int) -> Line:
    moment = day_text(event.at_unix_seconds)
    style = _EVENT_STYLES[event.severity]
    mark = {"bad": context.glyphs.bad, "warn": context.glyphs.warn}.get(style, " ")
    head: tuple[Run, ...] = ((f" {moment} ", "dim"), (f"{mark:<2} ", style), (f"{event.kind:<9} ", "label"))
    text = clip(printable(event.text), width - line_width(head), mark=True)
    return fit((*head, (text, style)), width)
