"""The health page: the findings with their recommended actions, injected faults, and the event log."""

from __future__ import annotations

from neurontools.client.events import EventSeverity, HostEvent
from neurontools.faults.requests import describe_fault, injected_by
from neurontools.model.finding import Severity
from neurontools.model.health import Verdict, group_alike, is_healthy, sentence, summary
from neurontools.util.units import clock_text, day_text, ranges_text
from neurontools.views.drawing.lines import (
    SELECTED,
    Line,
    Run,
    TextPage,
    clip,
    fit,
    fit_marked,
    line_width,
    printable,
    styled,
)
from neurontools.views.drawing.plots import backfill_text
from neurontools.views.drawing.render_context import (
    RenderContext,
    SearchEntry,
    heading,
    shown_devices,
    shown_events,
    visible_top,
)

_STYLES = {Severity.OK: "good", Severity.NOTICE: "label", Severity.WARNING: "warn", Severity.CRITICAL: "bad"}
_EVENT_STYLES = {EventSeverity.INFO: "text", EventSeverity.WARNING: "warn", EventSeverity.CRITICAL: "bad"}


def health_page(context: RenderContext, width: int, height: int) -> TextPage:
    """Draws the findings and injected faults, then the event log, newest event first."""
    page = TextPage()
    verdicts = [*_verdict_lines(context, width), *_fault_lines(context, width)]
    room = max(3, height * 3 // 5)
    if len(verdicts) > room:
        hidden = len(verdicts) - room + 1
        verdicts = [*verdicts[: room - 1], fit(((f"   … {hidden} more lines", "dim"),), width)]
    page.add_lines(*verdicts)
    events = list(reversed(shown_events(context, context.pid)))
    count = "1 event" if len(events) == 1 else f"{len(events)} events"
    age_parts = (
        backfill_text(context)
        or f"{count} since {_history_start_text(context)}{context.key_hint('; Enter: go to event')}"
    )
    page.add_lines(
        heading(context, "Events" if context.pid is None else f"Events of PID {context.pid}", width, age_parts)
    )
    list_height = max(1, height - len(page.lines))
    cursor = min(context.cursor, max(0, len(events) - 1))
    top = visible_top(cursor, context.top, list_height, len(events))
    lines = []
    for position in range(top, min(len(events), top + list_height)):
        line = _event_line(context, events[position], width)
        lines.append(styled(line, SELECTED) if position == cursor else line)
    page.add_list(lines, len(events), list_height, top)
    if not events:
        text = backfill_text(context) or f"no events since {_history_start_text(context)}"
        page.add_lines(fit_marked(((f"   {text}", "dim"),), width))
    return page


def _history_start_text(context: RenderContext) -> str:
    """Returns, as text, the time at which the known history starts."""
    since = context.clock.first_at_unix_seconds
    since = context.snapshot.taken_at_unix_seconds if since is None else since
    return clock_text(since)


def event_entries(context: RenderContext) -> list[SearchEntry]:
    """Returns the events as search entries, newest first."""
    return [
        SearchEntry(str(number), _event_text(event))
        for number, event in enumerate(reversed(shown_events(context, context.pid)))
    ]


def _event_text(event: HostEvent) -> str:
    return f"{event.kind} {event.severity.name} {printable(event.text)}"


def event_time_of_row(context: RenderContext, row: int) -> float | None:
    """Returns the time of the event in a row of the event log, in seconds on the timeline; None if the row is empty."""
    events = shown_events(context, context.pid)
    return events[len(events) - 1 - row].at_seconds if 0 <= row < len(events) else None


def _shown_verdicts(context: RenderContext) -> tuple[Verdict, ...]:
    """Returns the verdicts on the devices that the current tab's process uses, or on all devices."""
    devices = shown_devices(context, context.pid)
    return tuple(verdict for verdict in context.verdicts if devices is None or verdict.device_index in devices)


def _verdict_lines(context: RenderContext, width: int) -> list[Line]:
    verdicts = _shown_verdicts(context)
    subject_text = "Health" if context.pid is None else f"Health of the devices of PID {context.pid}"
    lines = [heading(context, f"{subject_text}: {summary(verdicts, context.snapshot)}", width)]
    if verdicts and is_healthy(verdicts) and not any(verdict.findings for verdict in verdicts):
        lines.append(fit(((f" {context.glyphs.good} ", "good"), ("nothing to do", "text")), width))
    shown = {verdict.device_index for verdict in verdicts}
    for finding, every in group_alike(finding for verdict in verdicts for finding in verdict.findings):
        devices = [device for device in every if device in shown]
        mark = {Severity.CRITICAL: context.glyphs.bad, Severity.WARNING: context.glyphs.warn}.get(finding.severity, "i")
        style = _STYLES[finding.severity]
        subject = f"ND {ranges_text(devices)}"
        runs: list[Run] = [
            (f" {mark:<2} ", style),
            (f"{subject:<9} ", style),
            (f"{finding.severity.name.lower():<9}", style),
        ]
        is_of_more = len(devices) > len(finding.device_indices)
        more = f" (ND {ranges_text(finding.device_indices)}; the others alike)" if is_of_more else ""
        text = clip(printable(sentence(finding, context.snapshot)) + more, width - 24, mark=True)
        lines.append(fit((*runs, (text, "text")), width))
        lines.append(fit((("    do: ", "dim"), (clip(printable(finding.action), width - 9, mark=True), "dim")), width))
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
    mark = {EventSeverity.CRITICAL: context.glyphs.bad, EventSeverity.WARNING: context.glyphs.warn}.get(
        event.severity, " "
    )
    style = _EVENT_STYLES[event.severity]
    head: tuple[Run, ...] = ((f" {moment} ", "dim"), (f"{mark:<2} ", style), (f"{event.kind:<9} ", "label"))
    text = clip(printable(event.text), width - line_width(head), mark=True)
    return fit((*head, (text, style)), width)
