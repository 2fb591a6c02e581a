"""The signal menu: which signal, then whether it is really meant for these processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.client.history.feed import Link
from neurontools.tui.choices import Choices
from neurontools.tui.signals import CHOICES, send
from neurontools.util.process_text import script_text
from neurontools.views.drawing.dialog import Dialog
from neurontools.views.drawing.line import clip, foreign

if TYPE_CHECKING:
    from neurontools.model import Process
    from neurontools.tui.dashboard_state import DashboardState

_SCRIPT_CELLS = 60
_MOST_NAMED = 8


def signal_choices(dashboard: DashboardState) -> Choices | None:
    """The menu, or None when no signal can be sent now, which is told."""
    targets = _targets(dashboard)
    if dashboard.is_read_only:
        dashboard.tell("--read-only: no signals are sent")
        return None
    if not dashboard.feed.is_live or dashboard.feed.status.link is not Link.LIVE:
        dashboard.tell("signals can be sent only while the daemon's live data is there")
        return None
    if not targets:
        dashboard.tell("no process is selected")
        return None

    def ask(number: int) -> Choices:
        return _confirmation(dashboard, CHOICES[number][0], targets)

    options = tuple(f"{name:<8} {text}" for name, text in CHOICES)
    return Choices(Dialog("Send a signal", _named(targets), options), ask)


def _targets(dashboard: DashboardState) -> list[Process]:
    """The tagged processes that are still there, else the selected one or job, else that of the tab; as of now."""
    moments = dashboard.feed.timeline.moments
    if not moments:
        return []
    latest = {process.pid: process for process in moments[-1].snapshot().processes}
    pids = sorted(dashboard.tagged)
    if not pids:
        chosen = dashboard.details_pid or (dashboard.selected_pid if dashboard.page == "processes" else dashboard.pid)
        pids = [chosen] if chosen is not None else list(dashboard.pids_of_row())
    return [latest[pid] for pid in pids if pid in latest]


def _named(targets: list[Process]) -> tuple[str, ...]:
    more = len(targets) - _MOST_NAMED
    named = tuple(
        f"PID {process.pid}  {foreign(process.user or '-', 20)}  {foreign(process.tag, 30)}  "
        f"{clip(script_text(foreign(process.command)), _SCRIPT_CELLS, mark=True)}"
        for process in targets[:_MOST_NAMED]
    )
    return (*named, f"and {more} more") if more > 0 else named


def _confirmation(dashboard: DashboardState, name: str, targets: list[Process]) -> Choices:
    def decide(number: int) -> None:
        if number == 1:
            dashboard.tell("; ".join(send(process, name) for process in targets))

    who = f"{len(targets)} processes" if len(targets) > 1 else f"PID {targets[0].pid}"
    options = ("No, do nothing", f"Yes, send {name}")
    return Choices(Dialog(f"Send {name} to {who}?", _named(targets), options), decide)
