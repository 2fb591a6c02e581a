"""`neuron-top`: the live dashboard, or the same facts as one text screen, JSON or CSV.

The first frame is painted from one unary call before Textual and grpcio are imported.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING

from neurontools.cli.line.about import about
from neurontools.cli.line.options import parse
from neurontools.cli.line.output import tell
from neurontools.cli.top import options
from neurontools.cli.top.theme import chosen_theme
from neurontools.errors import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, UserError
from neurontools.rpc import socket_path

if TYPE_CHECKING:
    from types import FrameType

    from neurontools.cli.daemon.private import PrivateDaemon
    from neurontools.cli.top.first_frame import Terminal
    from neurontools.history.feed import Feed
    from neurontools.model import Snapshot
    from neurontools.tui.settings import Settings

TIMEOUT_SECONDS = 5.0
SIMULATE_VARIABLE = "NEURONTOOLS_SIMULATE"
_COMMAND = "neuron-top"
_METHOD = "/neurontools.v1.MonitorService/GetSnapshot"
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_DATA_FORMATS = ("json", "json-lines", "csv")


def main() -> None:
    """Run the command and end the process."""
    try:
        exit_code = _run(parse(options.OPTIONS, sys.argv[1:]))
    except UserError as error:
        tell(f"{_COMMAND}: {error}")
        exit_code = error.exit_code
    except KeyboardInterrupt:
        exit_code = EXIT_INTERRUPTED
    except SystemExit as end:
        exit_code = end.code if isinstance(end.code, int) else EXIT_FAILURE
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(exit_code)


def _run(given: dict[str, str]) -> int:
    from neurontools.cli.line.output import write_document

    for name, print_about in _ABOUT.items():
        if name in given:
            write_document(print_about(given[name]).encode())
            return 0
    _refuse_contradictions(given)
    options.check(given)
    if "replay" in given:
        return _show(given, None)
    with _daemon(given) as private:
        path = private.socket_path if private is not None else None
        return _show(given, path or _answering_socket(given))


def _refuse_contradictions(given: dict[str, str]) -> None:
    formats = [f"--{name}" for name in ("once", *_DATA_FORMATS) if name in given]
    if len(formats) > 1:
        raise UserError(f"{' and '.join(formats)} exclude each other; choose one", EXIT_USAGE)
    for first, second in (("simulate", "socket"), ("replay", "socket"), ("replay", "simulate"), ("replay", "record")):
        if first in given and second in given:
            raise UserError(f"--{first} and --{second} exclude each other; leave one of them out", EXIT_USAGE)
    if "load" in given and "simulate" not in given:
        raise UserError("--load needs --simulate TYPE; a daemon that runs already has its own load", EXIT_USAGE)


def _daemon(given: dict[str, str]) -> AbstractContextManager[PrivateDaemon | None]:
    """A daemon of its own if one is wanted."""
    instance_type = given.get("simulate")
    if instance_type is None and "socket" not in given and not os.environ.get(socket_path.VARIABLE):
        instance_type = os.environ.get(SIMULATE_VARIABLE)
    if not instance_type:
        return nullcontext(None)
    from neurontools.cli.daemon.private import PrivateDaemon

    return PrivateDaemon(instance_type, load=given.get("load"))


def _answering_socket(given: dict[str, str]) -> str:
    """The socket that was named, else the first at which a daemon listens."""
    from neurontools.rpc.ask import NoDaemon

    named = socket_path.named(given.get("socket"), os.environ)
    if named is not None:
        return named
    failure: NoDaemon | None = None
    for candidate in socket_path.candidates(os.environ):
        try:
            _first_message(candidate)
        except NoDaemon as error:
            failure = failure if error.is_absent or failure is not None else error
            absent = error
        else:
            return candidate
    raise failure or absent


def _first_message(path: str) -> bytes:
    from neurontools.rpc.ask import ask

    return ask(path, _METHOD, b"", TIMEOUT_SECONDS)


def _show(given: dict[str, str], path: str | None) -> int:
    """What was asked for, of a daemon or a recording."""
    interval_seconds = options.interval_seconds(given)
    count = options.count(given)
    wanted = next((name for name in _DATA_FORMATS if name in given), None)
    if wanted is not None or "once" in given or not _has_terminal():
        from neurontools.cli.top import documents

        source = documents.Source(path, given.get("replay"), interval_seconds, given.get("record"))
        if wanted is not None:
            documents.write(wanted, source, count, options.filter_text(given))
        else:
            documents.write_screens(given, source, count)
        return 0
    return _dashboard(given, path, interval_seconds)


def _has_terminal() -> bool:
    return os.isatty(0) and os.isatty(1) and os.environ.get("TERM", "") not in ("", "dumb")


def _dashboard(given: dict[str, str], path: str | None, interval_seconds: float) -> int:
    from neurontools.cli.top.first_frame import Terminal
    from neurontools.history.feed import LiveFeed
    from neurontools.tui import settings as settings_module

    file = settings_module.settings_path(os.environ)
    settings, trouble = settings_module.load(file)
    _choose(settings, given)
    theme = chosen_theme(settings.theme, given, os.environ)
    filter_text = options.filter_text(given)
    terminal = Terminal()
    for number in _ENDING_SIGNALS:
        signal.signal(number, _end)  # so that the terminal is restored; the dashboard has handlers of its own
    message = _first_message(path) if path is not None else None
    feed = _feed(given, path, interval_seconds)
    if message is not None and isinstance(feed, LiveFeed):
        feed.begin_with(message)
    snapshot = feed.timeline.snapshot(0) if message is not None else None
    try:
        if snapshot is not None:
            _paint(terminal, snapshot, settings, theme, filter_text)
        from neurontools.tui.app import NeuronTop
        from neurontools.tui.dashboard import Dashboard
        from neurontools.views.drawing.glyphs import ASCII, UNICODE

        if terminal.has_light_background() and settings.theme == "auto" and theme == "dark":
            theme = "light"
        dashboard = Dashboard(
            feed,
            settings,
            ASCII if settings.ascii else UNICODE,
            is_read_only="read-only" in given,
            filter_text=filter_text,
        )
        if trouble:
            dashboard.tell(trouble)
        app = NeuronTop(dashboard, theme, file, continues=snapshot is not None)
        app.early_keys = terminal.typed if snapshot is not None else ""
        for number in _ENDING_SIGNALS:
            # While Textual takes the terminal over, nothing may interrupt it; it looks for these when it is done.
            signal.signal(number, lambda arrived, _frame: app.early_signals.append(arrived))
        terminal.hand_over()
        app.run(mouse=True)
        code = app.return_code or 0
    finally:
        feed.close()
        terminal.restore()
    return code


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _choose(settings: Settings, given: dict[str, str]) -> None:
    """What the command line says goes before what was saved."""
    settings.page = given.get("page", settings.page)
    settings.theme = options.one_of(given, "theme", options.THEME_NAMES) or settings.theme
    if settings.theme not in options.THEME_NAMES:
        settings.theme = "auto"
    if "ascii" in given or not _speaks_unicode():
        settings.ascii = True


def _speaks_unicode() -> bool:
    locale = next((text for name in ("LC_ALL", "LC_CTYPE", "LANG") if (text := os.environ.get(name))), "")
    return locale == "" or "utf" in locale.casefold()


def _paint(terminal: Terminal, snapshot: Snapshot, settings: Settings, theme: str, filter_text: str) -> None:
    from neurontools.views.drawing.glyphs import ASCII, UNICODE
    from neurontools.views.drawing.scene import Clock, Scene
    from neurontools.views.frame import frame

    width, height = os.get_terminal_size(1)
    scene = Scene.of(
        snapshot,
        clock=Clock("LIVE"),
        page=settings.page,
        glyphs=ASCII if settings.ascii else UNICODE,
        show_flops=settings.show_flops,
        sort=settings.sort,
        is_descending=settings.is_descending,
        window_seconds=settings.window_seconds,
        colour_by=settings.colour_by,
        filter_text=filter_text,
    )
    terminal.paint(frame(scene, width, height), theme, ask_background=settings.theme == "auto" and theme == "dark")


def _feed(given: dict[str, str], path: str | None, interval_seconds: float) -> Feed:
    from neurontools.history.feed import LiveFeed, ReplayFeed

    if path is None:
        return ReplayFeed(given["replay"])
    feed = LiveFeed(path, interval_seconds)
    if "record" in given:
        from neurontools.recording.writer import new_recording

        feed.recorder = new_recording(given["record"])
    return feed


def _json_schema(_value: str) -> str:
    from neurontools.cli.top.documents import schema_text

    return schema_text()


_ABOUT = {**about(_COMMAND, options), "json-schema": _json_schema}
