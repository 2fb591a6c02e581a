"""`neuron-top`: the live dashboard, or the same data as text, JSON or CSV.

The first frame is painted from one unary call before Textual and grpcio are imported.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from neurontools.cli.daemon.connection import ask_or_start_daemon
from neurontools.cli.line import (
    HOST_OPTION_NAMES,
    exclude_each_other,
    names_hosts,
    parse_options,
    print_information,
    refuse_without_hosts,
    schema_text,
)
from neurontools.cli.top import options
from neurontools.cli.top.options import chosen_theme
from neurontools.util.command_lifecycle import EndedBySignal, run_command, write_text
from neurontools.util.errors import EXIT_USAGE, UserError
from neurontools.util.light_imports import import_without
from neurontools.util.signals import DeferredSignals, closing_undisturbed
from neurontools.util.terminal import terminal_size

if TYPE_CHECKING:
    from neurontools.cli.top.first_frame import FirstFrameTerminal
    from neurontools.client.feed import Feed
    from neurontools.model import Snapshot
    from neurontools.tui.terminal import TypedAhead
    from neurontools.views.dashboard_settings import DashboardSettings
    from neurontools.views.drawing.figures import DeviceFilter

TIMEOUT_SECONDS = 5.0
_COMMAND = "neuron-top"
_METHOD = "/neurontools.v1.MonitorService/GetSnapshot"
_BY_SIGNAL = 128  # exit codes above 128 mean: 128 + the number of a signal
_DATA_FORMATS = ("json", "json-lines", "csv")
_SETTINGS_OF_FIRST_FRAME = (
    *("show_flops", "layout", "sort", "is_descending", "then_sort", "is_then_descending", "columns"),
    *("window_seconds", "colour_by", "panels", "plot_metric", "is_legend_shown"),
)
_NOT_WITH_SERVE = (
    *("once", "output", "count", "record", "replay", "diff", "summary", "page"),
    *("filter", "pid", "user", "device", "only-visible"),
)


def main() -> None:
    run_command(_COMMAND, _run_top)


def _run_top(arguments: list[str]) -> int:
    given = parse_options(options.OPTIONS, arguments)
    if print_information(_COMMAND, options, given):
        return 0
    if "json-schema" in given:
        from neurontools.fleet.document import FleetDocument
        from neurontools.views.top_document import TopDocument

        write_text(schema_text(FleetDocument if names_hosts(given) else TopDocument, "neuron-top --json"))
        return 0
    if "help-keys" in given:
        from neurontools.tui.keys import names_text

        write_text(names_text())
        return 0
    _refuse_contradictions(given)
    if "output" in given:
        from neurontools.cli.top.output_file import output_file

        with output_file(given["output"]):
            return _show(given)
    return _show(given)


def _show(given: dict[str, str]) -> int:
    if names_hosts(given):
        from neurontools.cli.top import fleet

        return fleet.show_fleet(given, _show_reached_host)
    options.check_options(given)
    if "diff" in given:
        from neurontools.cli.top.recordings import write_difference

        return write_difference(given)
    if "summary" in given:
        from neurontools.cli.top.recordings import write_summary

        return write_summary(given)
    if "export-perfetto" in given:
        from neurontools.cli.top.recordings import write_perfetto

        return write_perfetto(given)
    if "replay" in given:
        return _show_host(given, None, None)
    with ExitStack() as stack:
        return _show_host(given, *ask_or_start_daemon(_request_snapshot, given, stack, load=given.get("load")))


def _refuse_contradictions(given: dict[str, str]) -> None:
    exclude_each_other(given, "once", *_DATA_FORMATS)
    exclude_each_other(given, "output", "export-perfetto")
    if "output" in given and "json-lines" in given and not ("count" in given or "replay" in given):
        raise UserError("--output is written at the end, and --json-lines has none; add --count N", EXIT_USAGE)
    exclude_each_other(given, "replay", "simulate", "socket")
    exclude_each_other(given, "replay", "record")
    for name in ("replay", "record", "once", "json-lines", "csv", "count", "page"):
        exclude_each_other(given, "diff", name)
        exclude_each_other(given, "summary", name)
    exclude_each_other(given, "summary", "diff")
    for name in ("diff", "summary", "once", *_DATA_FORMATS):
        exclude_each_other(given, "export-perfetto", name)
    if "export-perfetto" in given and "replay" not in given:
        raise UserError("--export-perfetto needs --replay FILE; make a recording with --record FILE", EXIT_USAGE)
    for name in (*_DATA_FORMATS, *_NOT_WITH_SERVE):
        exclude_each_other(given, "serve", name)
    if "serve-config" in given and "serve" not in given:
        raise UserError("--serve-config needs --serve ADDRESS, such as 127.0.0.1:8080", EXIT_USAGE)
    exclude_each_other(given, *HOST_OPTION_NAMES)
    refuse_without_hosts(given, "group-by")
    for name in ("replay", "record", "diff", "summary", "simulate", "socket", "pid", "user", "device", "only-visible"):
        for hosts in HOST_OPTION_NAMES:
            exclude_each_other(given, hosts, name)
    if "load" in given and "simulate" not in given:
        raise UserError("--load needs --simulate TYPE; a daemon that runs already has its own load", EXIT_USAGE)


def _request_snapshot(path: str) -> tuple[str, bytes]:
    """Returns the socket path and its daemon's latest snapshot, encoded. Raises NoDaemon if no daemon answers."""
    from neurontools.rpc.ask import ask

    return path, ask(path, _METHOD, b"", TIMEOUT_SECONDS)


def _show_host(given: dict[str, str], path: str | None, message: bytes | None) -> int:
    """Shows the dashboard, prints documents or serves pages, from a daemon or a recording."""
    interval_seconds = options.interval_option(given)
    if "serve" in given and path is not None:
        from neurontools.cli.top.serve import serve

        return serve(given, interval_seconds, path)
    count = options.count_option(given)
    data_format = next((name for name in _DATA_FORMATS if name in given), None)
    if data_format is not None or "once" in given or not options.is_terminal():
        from neurontools.cli.top import documents

        device_filter = options.device_filter_option(given, os.environ)
        source = documents.SnapshotSource(
            path, given.get("replay"), interval_seconds, given.get("record"), device_filter
        )
        if data_format is not None:
            documents.write_documents(data_format, source, count, options.filter_option(given))
        else:
            documents.write_screens(given, source, count)
        return source.exit_code
    return _run_dashboard(given, path, message, interval_seconds)


def _show_reached_host(given: dict[str, str], path: str, typed_ahead: TypedAhead) -> int:
    """Shows the dashboard of the host at this socket. Raises NoDaemon if no daemon answers there."""
    return _run_dashboard(given, *_request_snapshot(path), options.interval_option(given), typed_ahead)


def _run_dashboard(
    given: dict[str, str],
    path: str | None,
    message: bytes | None,
    interval_seconds: float,
    typed_ahead: TypedAhead | None = None,
) -> int:
    from neurontools.cli.top.first_frame import FirstFrameTerminal
    from neurontools.tui import settings as settings_module
    from neurontools.tui.settings import configuration_path, load_user_configuration, summarize_problems

    file = settings_module.settings_path(os.environ)
    own = load_user_configuration(configuration_path(file))
    own.register()
    settings, problem = settings_module.load_settings(file)
    if not file.exists():
        settings.show("is_legend_shown", True)  # the first start of this user
    problems = [text for text in (problem, *own.problems, _apply_options(settings, given)) if text]
    theme = chosen_theme(settings.theme, given, os.environ)
    filter_text = options.filter_option(given)
    device_filter = options.device_filter_option(given, os.environ)
    snapshot = _decode_snapshot(message) if message is not None else None
    # The terminal is closed before the feed, whose threads may take a second to end.
    with ExitStack() as feeds, closing_undisturbed(FirstFrameTerminal()) as terminal:
        if snapshot is not None:
            options.check_device_filter(device_filter, snapshot)
            _paint_first_frame(terminal, snapshot, device_filter, settings, theme, filter_text)
        with DeferredSignals():  # an exception from a signal handler may be lost during imports
            import_without("asyncio", "ssl")
            import_without("shutil", "bz2", "lzma")
            from neurontools.tui.app import NeuronTop
            from neurontools.tui.dashboard import Dashboard
            from neurontools.tui.keys import KeyMap

        feed = feeds.enter_context(closing_undisturbed(_open_feed(given, path, interval_seconds, message)))
        if terminal.has_light_background() and settings.theme == "auto" and theme == "dark":
            theme = "light"
        dashboard = Dashboard(
            feed,
            settings,
            options.chosen_glyphs(is_ascii=settings.ascii),
            is_read_only="read-only" in given,
            filter_text=filter_text,
            device_filter=device_filter,
            keymap=(keymap := KeyMap(own.keys)),
        )
        problems += [f"{configuration_path(file)}: [keys] {text}" for text in keymap.problems]
        if problems:
            dashboard.show_message(summarize_problems(problems))
        app = NeuronTop(dashboard, theme, file, continues=snapshot is not None, typed_ahead=typed_ahead)
        app.early_keys = terminal.typed_characters if snapshot is not None else ""
        app.attributes_before = terminal.attributes_before
        app.on_takeover = terminal.hand_over
        with DeferredSignals() as app.endings:
            app.run(mouse=True, size=terminal_size())
        code = app.return_code or 0
    if code > _BY_SIGNAL:
        raise EndedBySignal(code - _BY_SIGNAL)
    if not feed.is_live and feed.status.text:
        raise UserError(feed.status.text)  # explains why the recording is incomplete
    return code


def _apply_options(settings: DashboardSettings, given: dict[str, str]) -> str:
    """Overrides saved settings with the options. Returns an error text if the saved theme is unknown, else ""."""
    from neurontools.views.drawing.lines import THEMES

    problem = ""
    if settings.theme not in ("auto", *THEMES):
        problem = f"there is no theme {settings.theme[:40]!r} any more; T chooses another"
        settings.show("theme", "auto")
    for name in ("page", "theme"):
        if name in given:
            settings.show(name, given[name])
    if "ascii" in given:
        settings.show("ascii", True)
    return problem


def _paint_first_frame(
    terminal: FirstFrameTerminal,
    snapshot: Snapshot,
    device_filter: DeviceFilter,
    settings: DashboardSettings,
    theme: str,
    filter_text: str,
) -> None:
    from neurontools.model import health
    from neurontools.views.drawing.render_context import RenderContext, ShownMoment
    from neurontools.views.screen import draw_screen

    width, height = terminal_size()
    context = RenderContext.from_snapshot(
        snapshot,
        device_filter,
        clock=ShownMoment("STARTING", is_loading_past=True),
        verdicts=health.verdicts(device_filter.filter_snapshot(snapshot)),
        page=settings.first_page,
        glyphs=options.chosen_glyphs(is_ascii=settings.ascii),
        filter_text=filter_text,
        **{name: getattr(settings, name) for name in _SETTINGS_OF_FIRST_FRAME},
    )
    ask_background = settings.theme == "auto" and theme == "dark"
    terminal.paint(draw_screen(context, width, height), theme, ask_background=ask_background)


def _decode_snapshot(message: bytes) -> Snapshot:
    from neurontools.rpc import neuron_pb2
    from neurontools.rpc.convert import snapshot_on_demand

    return snapshot_on_demand(neuron_pb2.GetSnapshotResponse.FromString(message).snapshot)


def _open_feed(given: dict[str, str], path: str | None, interval_seconds: float, message: bytes | None) -> Feed:
    from neurontools.client.feed import LiveFeed, ReplayFeed

    if path is None:
        return ReplayFeed(given["replay"])
    feed = LiveFeed(path, interval_seconds)
    if message is not None:
        feed.begin_with(message)
    if "record" in given:
        from neurontools.client.recording import RecordingWriter

        feed.recorder = RecordingWriter(given["record"])
    return feed
