"""The application in Textual's own test terminal: start, keys, palette, pictures of every page."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

import pytest
from textual import events
from textual.command import Command, CommandList, CommandPalette

from neurontools.cli.top.options import PAGE_NAMES
from neurontools.model import Snapshot
from neurontools.tui import keys
from neurontools.tui.app import NeuronTop
from neurontools.tui.dashboard import Dashboard
from neurontools.tui.settings import load_settings
from neurontools.tui.terminal import TypedAhead
from neurontools.views.dashboard_settings import DashboardSettings
from neurontools.views.drawing.glyphs import ASCII, BLOCKS, UNICODE
from neurontools.views.drawing.lines import THEMES
from tests.harness.pictures import (
    MIDDLE,
    PICTURES,
    SIZES,
    SMALL,
    is_as_stored,
    screen_rows,
    screens,
    screenshot,
    style_texts,
    without_version,
)
from tests.harness.pressed_keys import draw, text, type_keys
from tests.harness.still_feed import StillFeed, nearly_full, snapshots
from tests.harness.training_process import ADVICE, COUNTERS, OPERATORS, RATES, with_training
from tests.harness.waiting import wait_until_async

GOLDEN = Path(__file__).parent / "golden"
INNER_PAGES = {
    "compact": ("o", "v"),
    "tree": ("o", "x"),
    "details": ("w", "enter", "down", "enter"),
    "time": ("w", "enter", "down", "enter", "P"),
    "past": ("u", "[", "[", "{"),
    "setup": ("O",),
    "help": ("?",),
}
"""What keys lead to that is drawn otherwise than the pages themselves."""
FEWER_SIZES = {
    "time": (SMALL,),
    "past": (SMALL, MIDDLE),
    **dict.fromkeys(("details", "compact", "setup", "history", "heatmap", "health", "topology"), (MIDDLE,)),
    **dict.fromkeys(("help", "tree", "usage", "host"), (MIDDLE,)),
}
"""The sizes of pages that have the same layout at the others."""
NOT_TYPED = ("quit", "show_palette", "save_screenshot", "toggle_recording")


@pytest.fixture(autouse=True)
def _fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@cache
def taken(*, is_training: bool) -> tuple[Snapshot, ...]:
    """A minute and a half; at its end a device is nearly full, and a training tells where its time goes."""
    last = nearly_full(snapshots()[-1])
    if is_training:
        last = with_training(last, training=COUNTERS, training_rates=RATES, operators=OPERATORS, advice=ADVICE)
    return (*snapshots()[:-1], last)


def dashboard_of(page: str = "overview", *, is_training: bool = False) -> Dashboard:
    return Dashboard(StillFeed(taken(is_training=is_training)), DashboardSettings(page=page), UNICODE)


def shown(app: NeuronTop) -> str:
    return text(app.dashboard, (app.size.width, app.size.height))


async def test_keys_clicks_and_sizes_reach_the_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = NeuronTop(dashboard_of(), "dark")
    async with app.run_test(size=(100, 30)) as pilot:
        app.screen.set_focus(None)
        await type_keys(pilot, "w")
        assert app.dashboard.page == "processes", "what is typed before the board has the focus is not lost"
        app.screen.post_message(events.Key("h", "h"))
        app.screen.set_focus(app.dashboard_widget)  # on its way the board gets it
        await pilot.pause()
        assert app.dashboard.page == "history"
        for action in keys.ACTIONS:
            if action.name not in NOT_TYPED:
                await type_keys(pilot, action.keys[0], "escape")
        await type_keys(pilot, "o")
        rows = shown(app).splitlines()
        await pilot.click("DashboardWidget", offset=(rows[-1].index("Who"), len(rows) - 1))
        assert app.dashboard.page == "processes"
        for width, height in ((20, 5), (1, 1), (300, 100), (2, 40), (200, 50)):
            await pilot.resize_terminal(width, height)
            await type_keys(pilot, "w", "o")
        assert "NeuronCore v2 Utilization" in shown(app)
        await type_keys(pilot, "e")
        for theme in THEMES:
            app.set_theme_name(theme)
            await pilot.pause()
            assert "Health: " in shown(app), theme
        await type_keys(pilot, "S")
        assert "picture saved" in app.dashboard.message
    (saved,) = tmp_path.glob("*.svg")
    assert "Health:" in saved.read_text().replace("&#160;", " ")


async def test_the_scroll_bar_follows_the_mouse_while_it_is_dragged() -> None:
    app = NeuronTop(dashboard_of("processes"), "dark")
    async with app.run_test(size=(100, 30)) as pilot:
        await type_keys(pilot, "x")
        rows = [target.row for target in app.dashboard.drawn.targets if target.action == "scroll"]
        place, most = app.dashboard.list, app.dashboard.list.count - len(rows)
        await pilot.mouse_down("DashboardWidget", offset=(99, rows[0]))
        for row, top in ((rows[-1], most), (0, 0), (29, most), (rows[len(rows) // 2], None)):
            await pilot.hover("DashboardWidget", offset=(50, row))
            assert place.top == top if top is not None else 0 < place.top < most
        await pilot.mouse_up("DashboardWidget", offset=(50, rows[0]))
        await pilot.hover("DashboardWidget", offset=(99, rows[-1]))
        assert place.top == 0, "it was released"
        assert place.top <= place.cursor < place.top + len(rows)


async def test_q_quits_and_saves_the_settings(tmp_path: Path) -> None:
    app = NeuronTop(dashboard_of(), "dark", tmp_path / "settings.json")
    async with app.run_test(size=(100, 30)) as pilot:
        await type_keys(pilot, "f", "w", "T", "q")
    assert not app.is_running
    kept, _ = load_settings(tmp_path / "settings.json")
    assert (kept.show_flops, kept.page, kept.theme) == (True, "processes", "light")


async def test_the_palette_offers_every_action_and_runs_one() -> None:
    ahead = TypedAhead()
    ahead.begin()
    ahead.add("ctrl+p", "\x10")
    app = NeuronTop(dashboard_of(), "dark", typed_ahead=ahead)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert isinstance(app.screen_stack[-1], CommandPalette)
        await pilot.press("escape")
        offered = {command.title.casefold(): command.help for command in app.get_system_commands(app.screen)}
        for action in keys.ACTIONS:
            if action.name not in ("show_palette", "choose_tab"):
                assert action.shown in offered[action.text.casefold()], action
        assert not any(about.casefold().startswith(title) for title, about in offered.items()), "no text is there twice"
        await pilot.press("ctrl+p")
        await pilot.pause()
        found = app.screen.query_one(CommandList)
        await type_keys(pilot, *"topology")
        await wait_until_async(lambda: chosen(found).startswith("Topology"))
        await pilot.press("enter")
        await wait_until_async(lambda: app.dashboard.page == "topology")


def chosen(found: CommandList) -> str:
    """What Enter runs of all that the palette has found so far."""
    option = None if found.highlighted is None else found.get_option_at_index(found.highlighted)
    return (option.hit.text or "") if isinstance(option, Command) else ""


@pytest.mark.parametrize("name", [*PAGE_NAMES, *INNER_PAGES])
async def test_every_page_is_drawn_as_stored(name: str) -> None:
    dashboard = dashboard_of(name) if name in PAGE_NAMES else dashboard_of(is_training=True)
    shown = await screens(NeuronTop(dashboard, "dark"), INNER_PAGES.get(name, ()), FEWER_SIZES.get(name, SIZES))
    is_stored(without_version(shown), f"{name}.txt")


def test_other_glyphs_are_drawn_as_stored() -> None:
    """Pages of a very small terminal that has only ASCII, and of one that has blocks and no braille."""
    drawn = [
        row
        for glyphs, size, pages in ((ASCII, (56, 16), PAGE_NAMES), (BLOCKS, (140, 28), ("history",)))
        for page in pages
        for row in screen_rows(
            draw(Dashboard(StillFeed(taken(is_training=False)), DashboardSettings(page=page), glyphs), *size)
        )
    ]
    is_stored(without_version("\n".join(drawn)), "glyphs.txt")


def test_styles_look_as_stored() -> None:
    is_stored(style_texts(), "styles.txt")


def is_stored(shown: str, name: str) -> None:
    assert is_as_stored(shown, GOLDEN / name), f"{name} differs; look at it, then UPDATE_GOLDEN=1 writes it anew"


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
async def test_the_pictures_in_documents_show_what_is_shown_now(path: Path) -> None:
    assert is_as_stored(await screenshot(*PICTURES[path]), path), "scripts/draw-picture draws it anew; look at it"
