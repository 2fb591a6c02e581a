"""`neuron-top --hosts`, `--hostfile` and `--prometheus`: many hosts as a page, one text screen, JSON or CSV."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from neurontools.cli.daemon.fleet import opened_feed
from neurontools.cli.line.frame import write_document, write_text
from neurontools.cli.line.telling import tell
from neurontools.cli.top import options
from neurontools.fleet.document import csv_text, document, text_of
from neurontools.fleet.feed import FleetFeed
from neurontools.fleet.groups import USER, ways
from neurontools.fleet.states import HostState, Link, worst_first
from neurontools.util.errors import EXIT_NO_DAEMON, EXIT_USAGE, UserError
from neurontools.util.terminal import locale_is_utf8, terminal_size
from neurontools.views.drawing.glyphs import glyphs_for
from neurontools.views.drawing.lines import plain_text
from neurontools.views.fleet_hosts import list_rows
from neurontools.views.fleet_page import FleetContext, fleet_lines, matches_filter

if TYPE_CHECKING:
    from neurontools.cli.top.fleet_dashboard import LookAt

_USUAL_SIZE = (120, 50)


def show(given: dict[str, str], look_at: LookAt) -> int:
    """Show what was asked for. The exit code is 12 where no host answered what was printed once.

    `look_at` shows one host.
    """
    options.check({name: value for name, value in given.items() if name != "filter"})  # here these are words
    interval = options.interval_seconds(given) if "interval" in given else None
    feed, troubles = opened_feed(given, interval)
    if given.get("group-by") == USER:
        feed.want_users()
    with feed:
        if "serve" in given:
            from neurontools.cli.top.serve import serve

            return serve(given, options.interval_seconds(given), feed, troubles)
        is_dashboard = os.isatty(0) and os.isatty(1) and os.environ.get("TERM", "") not in ("", "dumb")
        if is_dashboard and not any(name in given for name in ("once", "json", "json-lines", "csv")):
            from neurontools.cli.top.fleet_dashboard import dashboard

            return dashboard(given, feed, troubles, look_at)
        for trouble in troubles:
            tell(f"neuron-top: {trouble}")
        feed.start()
        feed.wait_settled()
        for note in feed.notes:
            tell(f"neuron-top: {note}")
        _write(given, feed, troubles)
        return 0 if any(state.link is Link.LIVE for state in feed.states) else EXIT_NO_DAEMON


def _write(given: dict[str, str], feed: FleetFeed, troubles: tuple[str, ...]) -> None:
    """So many screens or documents, one without --count; of lines of JSON without end."""
    count = options.count(given)
    is_endless = "json-lines" in given and count is None
    before = csv_text(None) if "csv" in given else "[\n" if "json" in given and count is not None else ""
    number = 0
    while is_endless or number < (count or 1):
        if number:
            time.sleep(feed.interval_seconds)
        number += 1
        if any(name in given for name in ("json", "json-lines", "csv")):
            states = feed.states
            way = checked_way(given, states)
            told = (*troubles, *feed.notes)
            made = document(worst_first(states), time.monotonic(), time.time(), told, way, jobs=feed.jobs)
            if "csv" in given:
                write_text(before + csv_text(made))
            elif "json-lines" in given:
                write_text(text_of(made) + "\n")
            elif count is None:
                write_text(text_of(made, indent=2) + "\n")
            else:
                write_text(before + text_of(made) + (",\n" if number < count else "\n]\n"))
            before = ""
        else:
            _write_screen(given, feed)


def _write_screen(given: dict[str, str], feed: FleetFeed) -> None:
    from neurontools.cli.top.first_frame import ansi
    from neurontools.cli.top.theme import chosen_theme

    states = feed.states
    text = given.get("filter", "")
    group_by = checked_way(given, states)
    scene = FleetContext(
        rows=list_rows([state for state in states if matches_filter(state, text)], worst_first, group_by),
        group_by=group_by,
        all_states=states,
        jobs=feed.jobs,
        now_seconds=time.monotonic(),
        now_unix_seconds=time.time(),
        interval_seconds=feed.interval_seconds,
        filter_text=text,
        notes=feed.notes,
        glyphs=glyphs_for(is_ascii="ascii" in given or not locale_is_utf8(), terminal=os.environ.get("TERM", "")),
    )
    lines = fleet_lines(scene, max(20, terminal_size(1, _USUAL_SIZE)[0]))
    if given.get("color") == "always" or (bool(os.environ.get("FORCE_COLOR")) and "color" not in given):
        theme = chosen_theme(given.get("theme", "auto"), given, os.environ)
        write_document("".join(f"{ansi(line, theme)}\x1b[0m\n" for line in lines).encode())
    else:
        write_text("".join(f"{plain_text(line)}\n" for line in lines))


def checked_way(given: dict[str, str], states: Sequence[HostState]) -> str:
    """The value of --group-by, "" without it; UserError when these hosts can't be grouped so."""
    way = given.get("group-by", "")
    if way and way not in (known := ways(states)):
        raise UserError(f"--group-by {way[:40]}: give one of {', '.join(known)}", EXIT_USAGE)
    return way
