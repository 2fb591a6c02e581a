"""Shows many hosts in neuron-top: as a dashboard, one text screen, JSON or CSV."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from neurontools.cli.daemon.fleet import open_fleet_feed
from neurontools.cli.top import options
from neurontools.cli.top.first_frame import FirstFrameTerminal, screen_width, write_lines
from neurontools.cli.top.options import chosen_theme
from neurontools.fleet.document import csv_text, document, document_json
from neurontools.fleet.feed import FleetFeed
from neurontools.fleet.states import USER, HostLink, HostState, grouping_choices, worst_first
from neurontools.util.command_lifecycle import EndedBySignal, write_stderr, write_text
from neurontools.util.errors import EXIT_NO_DAEMON, EXIT_USAGE, UserError
from neurontools.util.light_imports import import_without
from neurontools.util.signals import DeferredSignals, closing_undisturbed
from neurontools.views.fleet_hosts import list_rows
from neurontools.views.fleet_page import FleetContext, fleet_lines, matches_filter

if TYPE_CHECKING:
    from neurontools.tui.terminal import TypedAhead


ShowHost = Callable[[dict[str, str], str, "TypedAhead"], int]
"""Shows the dashboard of one host. Parameters: options, socket path, and keys that were typed ahead."""

_BY_SIGNAL = 128
_HOST_OPTIONS = ("theme", "ascii", "color", "read-only", "page")


def run_fleet_dashboard(given: dict[str, str], feed: FleetFeed, problems: tuple[str, ...], look_at: ShowHost) -> int:
    """Shows the page of many hosts until the user leaves it. Returns the exit code.

    `look_at` shows the dashboard of a host that the user opens.
    """
    feed.start()
    with DeferredSignals():  # an exception from a signal handler may be lost during imports
        import_without("asyncio", "ssl")
        from neurontools.tui.fleet import FleetApp, FleetDashboard
        from neurontools.tui.settings import summarize_problems
        from neurontools.tui.terminal import TypedAhead

    board = FleetDashboard(
        feed,
        options.chosen_glyphs(is_ascii="ascii" in given),
        filter_text=given.get("filter", ""),
        group_by=given.get("group-by", ""),
        message=summarize_problems(problems),
    )
    theme = chosen_theme(given.get("theme", "auto"), given, os.environ)
    typed_ahead = TypedAhead()
    with closing_undisturbed(FirstFrameTerminal()):
        while True:
            with DeferredSignals() as endings:
                app = FleetApp(board, theme, typed_ahead, endings)
                app.run(mouse=True)
            code = app.return_code or 0
            if code > _BY_SIGNAL:
                raise EndedBySignal(code - _BY_SIGNAL)
            name = app.return_value
            if name is None:
                return code
            path = feed.connect_host(name)
            if path is None:
                typed_ahead.forget()
                board.show_message(f"{name}: not reached")
                continue
            try:
                look_at({option: given[option] for option in _HOST_OPTIONS if option in given}, path, typed_ahead)
            except UserError as error:
                typed_ahead.forget()
                board.show_message(f"{name}: {error}")


def show_fleet(given: dict[str, str], look_at: ShowHost) -> int:
    """Shows, serves or prints many hosts. Returns the exit code: 12 if no printed host answered.

    `look_at` shows the dashboard of a host that the user opens.
    """
    # Leaves out --filter: check_options parses a filter of processes, but here it is a filter of hosts.
    options.check_options({name: value for name, value in given.items() if name != "filter"})
    interval = options.interval_option(given) if "interval" in given else None
    feed, problems = open_fleet_feed(given, interval)
    if given.get("group-by") == USER:
        feed.request_users()
    with feed:
        if "serve" in given:
            from neurontools.cli.top.serve import serve

            return serve(given, options.interval_option(given), feed, problems)
        if options.is_terminal() and not any(name in given for name in ("once", "json", "json-lines", "csv")):
            return run_fleet_dashboard(given, feed, problems, look_at)
        for problem in problems:
            write_stderr(f"neuron-top: {problem}")
        feed.start()
        feed.wait_settled()
        for note in feed.notes:
            write_stderr(f"neuron-top: {note}")
        _write_fleet(given, feed, problems)
        return 0 if any(state.link is HostLink.LIVE for state in feed.states) else EXIT_NO_DAEMON


def _write_fleet(given: dict[str, str], feed: FleetFeed, problems: tuple[str, ...]) -> None:
    """Prints `--count` screens or documents, by default one. JSON lines continue endlessly by default."""
    count = options.count_option(given)
    is_endless = "json-lines" in given and count is None
    before = csv_text(None) if "csv" in given else "[\n" if "json" in given and count is not None else ""
    for number in itertools.count(1) if is_endless else range(1, (count or 1) + 1):
        if number > 1:
            time.sleep(feed.interval_seconds)
        if any(name in given for name in ("json", "json-lines", "csv")):
            states = feed.states
            way = group_by_option(given, states)
            notes = (*problems, *feed.notes)
            now, now_unix = time.monotonic(), time.time()
            fleet_document = document(
                worst_first(states), now, now_unix, notes, way, jobs=feed.jobs, models=feed.models
            )
            if "csv" in given:
                write_text(before + csv_text(fleet_document))
            elif "json-lines" in given:
                write_text(document_json(fleet_document) + "\n")
            elif count is None:
                write_text(document_json(fleet_document, indent=2) + "\n")
            else:
                write_text(before + document_json(fleet_document) + (",\n" if number < count else "\n]\n"))
            before = ""
        else:
            _write_fleet_screen(given, feed)


def _write_fleet_screen(given: dict[str, str], feed: FleetFeed) -> None:
    states = feed.states
    text = given.get("filter", "")
    group_by = group_by_option(given, states)
    context = FleetContext(
        rows=list_rows([state for state in states if matches_filter(state, text)], worst_first, group_by),
        group_by=group_by,
        all_states=states,
        jobs=feed.jobs,
        models=feed.models,
        now_seconds=time.monotonic(),
        now_unix_seconds=time.time(),
        interval_seconds=feed.interval_seconds,
        filter_text=text,
        notes=feed.notes,
        glyphs=options.chosen_glyphs(is_ascii="ascii" in given),
    )
    write_lines(given, fleet_lines(context, screen_width()))


def group_by_option(given: dict[str, str], states: Sequence[HostState]) -> str:
    """Returns the value of --group-by, or "". Raises UserError if the hosts do not have that property."""
    way = given.get("group-by", "")
    if way and way not in (choices := grouping_choices(states)):
        raise UserError(f"--group-by {way[:40]}: give one of {', '.join(choices)}", EXIT_USAGE)
    return way
