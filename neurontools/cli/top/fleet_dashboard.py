"""The page of many hosts in a terminal, and from it into one of them and back."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from neurontools.cli.line import frame
from neurontools.cli.top.first_frame import Terminal
from neurontools.cli.top.theme import chosen_theme
from neurontools.fleet.feed import FleetFeed
from neurontools.util.errors import UserError
from neurontools.util.light_imports import import_asyncio
from neurontools.util.signals import DeferredSignals, closing_undisturbed
from neurontools.util.terminal import locale_is_utf8
from neurontools.views.drawing.glyphs import glyphs_for

if TYPE_CHECKING:
    from neurontools.tui.terminal import TypedAhead

LookAt = Callable[[dict[str, str], str, "TypedAhead"], int]
"""Shows one host with some options, at a socket, and takes what was typed for it."""

_BY_SIGNAL = 128
_OF_A_HOST = ("theme", "ascii", "color", "read-only", "page")


def dashboard(given: dict[str, str], feed: FleetFeed, troubles: tuple[str, ...], look_at: LookAt) -> int:
    """Show the page until it is left; the exit code. `look_at` shows the dashboard of one host."""
    feed.start()
    with DeferredSignals():  # what is raised in the midst of an import may be lost
        import_asyncio()
        from neurontools.tui.fleet import FleetApp, FleetDashboard
        from neurontools.tui.terminal import TypedAhead

    glyphs = glyphs_for(is_ascii="ascii" in given or not locale_is_utf8(), terminal=os.environ.get("TERM", ""))
    board = FleetDashboard(
        feed,
        glyphs,
        filter_text=given.get("filter", ""),
        group_by=given.get("group-by", ""),
        message=_first_message(troubles),
    )
    theme = chosen_theme(given.get("theme", "auto"), given, os.environ)
    typed_ahead = TypedAhead()
    with closing_undisturbed(Terminal()):
        while True:
            with DeferredSignals() as endings:
                app = FleetApp(board, theme, typed_ahead, endings)
                app.run(mouse=True)
            code = app.return_code or 0
            if code > _BY_SIGNAL:
                raise frame.EndedBySignal(code - _BY_SIGNAL)
            name = app.return_value
            if name is None:
                return code
            path = feed.reached(name)
            if path is None:
                typed_ahead.forget()
                board.tell(f"{name}: not reached")
                continue
            try:
                look_at({option: given[option] for option in _OF_A_HOST if option in given}, path, typed_ahead)
            except UserError as error:
                typed_ahead.forget()
                board.tell(f"{name}: {error}")


def _first_message(troubles: tuple[str, ...]) -> str:
    """What was wrong with the names of hosts."""
    if not troubles:
        return ""
    more = len(troubles) - 1
    return troubles[0] + (f" (and {more} more lines)" if more else "")
