"""The application in Textual's own test terminal: start, keys, palette, pictures of every page."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from textual import events
from textual.command import Command, CommandList

from neurontools.cli.top.options import PAGE_NAMES
from neurontools.model import Snapshot
from neurontools.tui import keys
from neurontools.tui.app import NeuronTop
from neurontools.tui.dashboard import Dashboard
from neurontools.tui.settings import Settings, load
from neurontools.views.drawing.glyphs import ASCII, UNICODE
from neurontools.views.drawing.line import plain
from neurontools.views.drawing.style import THEMES
from tests.harness.pictures import README_PICTURE, is_as_stored, picture, readme_picture, without_version
from tests.harness.still_feed import StillFeed, nearly_full, snapshots
from tests.harness.told_process import ADVICE, COUNTERS, OPERATORS, RATES, with_told
from tests.harness.typed_keys import type_keys
from tests.harness.waiting import wait_until_async

GOLDEN = Path(__file__).parent / "golden"
SIZES = ((80, 24), (120, 36), (200, 50))
INNER_PAGES = {
    "compact": ("o", "v"),
    "tree": ("o", "x"),
    "details": ("w", "enter", "down", "enter"),
    "time": ("w", "enter", "down", "enter", "P"),
    "past": ("h", "[", "[", "{"),
    "setup": ("O",),
    "help": ("?",),
}
"""What keys lead to that is drawn otherwise than the pages themselves."""


@pytest.fixture(autouse=True)
def _fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def app_of(
    *, theme: str = "dark", is_ascii: bool = False, last: Snapshot | None = None, **choices: object
) -> NeuronTop:
    taken = (*snapshots()[:-1], last or nearly_full(snapshots()[-1]))
    dashboard = Dashboard(StillFeed(taken), Settings(**choices), ASCII if is_ascii else UNICODE)  # type: ignore[arg-type]
    return NeuronTop(dashboard, theme)


def shown(app: NeuronTop) -> str:
    width, height = app.size
    return "\n".join(plain(line) for line in app.dashboard.draw(width, height).lines)


async def test_what_is_typed_before_the_board_has_the_focus_is_not_lost() -> None:
    app = app_of()
    async with app.run_test(size=(100, 30)) as pilot:
        app.screen.set_focus(None)
        await pilot.press("w")
        assert app.dashboard.page == "processes"
        app.screen.post_message(events.Key("h", "h"))
        app.screen.set_focus(app.board)  # on its way the board gets it
        await pilot.pause()
        assert app.dashboard.page == "history"


async def test_every_key_on_every_page_leaves_it_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = app_of()
    async with app.run_test(size=(100, 30)) as pilot:
        for page in "owthmeuH":
            await type_keys(pilot, page)
            for action in keys.ACTIONS:
                if action.name not in ("quit", "show_palette", "save_screenshot", "toggle_recording"):
                    await type_keys(pilot, action.keys[0], "escape")
            assert app.is_running
        app.exit()


async def test_q_quits_and_saves_the_settings(tmp_path: Path) -> None:
    dashboard = Dashboard(StillFeed(snapshots()), Settings(), UNICODE)
    app = NeuronTop(dashboard, "dark", tmp_path / "settings.json")
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("f", "w", "T", "q")
    assert not app.is_running
    kept, _ = load(tmp_path / "settings.json")
    assert (kept.show_flops, kept.page, kept.theme) == (True, "processes", "light")


async def test_the_palette_offers_every_action_and_runs_one() -> None:
    app = app_of()
    async with app.run_test(size=(100, 30)) as pilot:
        offered = {command.title.casefold(): command.help for command in app.get_system_commands(app.screen)}
        for action in keys.ACTIONS:
            if action.name not in ("show_palette", "choose_tab"):
                assert action.shown in offered[action.text.casefold()], action
        assert not any(text.casefold().startswith(title) for title, text in offered.items()), "no text is there twice"
        await pilot.press("ctrl+p")
        await pilot.pause()
        found = app.screen.query_one(CommandList)
        await pilot.press(*"topology")
        await wait_until_async(lambda: chosen(found).startswith("Topology"))
        await pilot.press("enter")
        await wait_until_async(lambda: app.dashboard.page == "topology")


def chosen(found: CommandList) -> str:
    """What Enter runs of all that the palette has found so far."""
    option = None if found.highlighted is None else found.get_option_at_index(found.highlighted)
    return (option.hit.text or "") if isinstance(option, Command) else ""


async def test_a_picture_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = app_of()
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("S")
        assert "picture saved" in app.dashboard.message
    (picture,) = tmp_path.glob("*.svg")
    assert "NeuronCore" in picture.read_text().replace("&#160;", " ")


async def test_the_mouse_reaches_the_board() -> None:
    app = app_of()
    async with app.run_test(size=(100, 30)) as pilot:
        row = shown(app).splitlines()
        await pilot.click("Board", offset=(row[-1].index("Who"), len(row) - 1))
        assert app.dashboard.page == "processes"


async def test_a_storm_of_sizes() -> None:
    app = app_of()
    async with app.run_test(size=(100, 30)) as pilot:
        for width, height in ((20, 5), (1, 1), (300, 100), (2, 40), (80, 24), (20, 5), (200, 50)):
            await pilot.resize_terminal(width, height)
            await pilot.press("w", "o")
        assert "NeuronCore v2 Utilization" in shown(app)


@pytest.mark.parametrize("theme", THEMES)
async def test_every_theme_shows_the_same_text(theme: str) -> None:
    app = app_of(theme=theme, page="health")
    async with app.run_test(size=(100, 30)):
        assert "Health: " in shown(app)


async def test_ascii_is_ascii() -> None:
    for page in PAGE_NAMES:
        app = app_of(is_ascii=True, page=page)
        async with app.run_test(size=(120, 40)):
            assert shown(app).isascii(), page


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("page", PAGE_NAMES)
async def test_pictures_of_every_page(page: str, size: tuple[int, int]) -> None:
    path = GOLDEN / f"{page}-{size[0]}x{size[1]}.svg"
    drawn = without_version(await picture(app_of(page=page), size))
    assert is_as_stored(drawn, path), f"{path.name} differs; look at it, then UPDATE_GOLDEN=1 writes it anew"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", INNER_PAGES)
async def test_pictures_of_what_keys_lead_to(name: str, size: tuple[int, int]) -> None:
    told = with_told(
        nearly_full(snapshots()[-1]), training=COUNTERS, training_rates=RATES, operators=OPERATORS, advice=ADVICE
    )
    path = GOLDEN / f"{name}-{size[0]}x{size[1]}.svg"
    drawn = without_version(await picture(app_of(last=told), size, INNER_PAGES[name]))
    assert is_as_stored(drawn, path), f"{path.name} differs; look at it, then UPDATE_GOLDEN=1 writes it anew"


async def test_the_picture_in_readme_shows_what_is_shown_now() -> None:
    assert is_as_stored(await readme_picture(), README_PICTURE), "scripts/draw-picture draws it anew; look at it"
