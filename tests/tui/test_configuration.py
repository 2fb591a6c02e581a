"""Themes, keys and settings: kept whole, never where another user leads, and rubbish in their place."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from neurontools.cli.top import command
from neurontools.tui import keys
from neurontools.tui.dashboard import Dashboard
from neurontools.tui.keys import KeyMap, textual_key
from neurontools.tui.settings import (
    UserConfiguration,
    load_settings,
    load_user_configuration,
    save_settings,
    settings_path,
)
from neurontools.views.dashboard_settings import DashboardSettings
from neurontools.views.drawing.glyphs import UNICODE
from neurontools.views.drawing.lines import THEMES, Style
from tests.harness.command import call_main
from tests.harness.dashboard_terminal import Terminal
from tests.harness.hostile_user import HOSTILE, needs_two_users, public_directory
from tests.harness.paths import ROOT
from tests.harness.pressed_keys import press
from tests.harness.running_daemon import RunningDaemon
from tests.harness.still_feed import StillFeed, snapshots

MANUAL = (ROOT / "man/neuron-top.1").read_text("utf-8")
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = list(DashboardSettings().values_to_save())


Toml = Callable[[str], UserConfiguration]


@pytest.fixture
def toml(tmp_path: Path) -> Toml:
    def loaded(text: str) -> UserConfiguration:
        path = tmp_path / "neuron-top.toml"
        path.write_text(text)
        return load_user_configuration(path)

    return loaded


def test_a_theme_changes_what_it_names(toml: Toml) -> None:
    found = toml(
        """
        [themes.mine]
        base = "light"
        selected = "#102030"
        busy = "#ff00ff"
        dim = ""
        title = { background = "#550055", bold = false }
        """
    )
    assert not found.problems
    (theme,) = found.themes
    light = THEMES["light"].styles
    assert (theme.name, theme.is_dark, theme.selected_background) == ("mine", False, "#102030")
    assert theme.styles["busy"] == Style("#ff00ff")
    assert theme.styles["dim"] == Style(None)
    assert theme.styles["title"] == Style(light["title"].color, "#550055", bold=False)
    assert theme.styles["warn"] == light["warn"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[themes.mine]\nbusy = '#12'", "[themes.mine] busy: '#12' is not a colour; give \"#rrggbb\""),
        ("[themes.mine]\nbusy = 7", "busy: 7 is not a colour"),
        ("[themes.mine]\ncolour = '#123456'", "'colour' is not a style; styles are selected, text"),
        ("[themes.mine]\nbusy = { bold = 1 }", "busy.bold: 1 is neither true nor false"),
        ("[themes.mine]\nbusy = { blink = true }", "busy: 'blink' is not one of color, background, bold"),
        ("[themes.mine]\nbase = 'pink'", "base: 'pink' is not one of dark, light"),
        ("[themes.dark]\nbusy = '#123456'", "'dark' is not a valid theme name"),
        ("[themes.'a b']\n", "'a b' is not a valid theme name"),
        ("themes = 5", "themes must be tables"),
        ("[themes]\nmine = 5", "[themes.mine] must be a table of styles"),
        ("keys = 5", "keys must be a table"),
        ("[colours]", "[colours] is not known; there are [themes.NAME] and [keys]"),
        ("[themes", "is no TOML: "),
        ("a = " + "[" * 5000, "is no TOML: "),
    ],
)
def test_what_is_wrong_in_the_file(toml: Toml, text: str, told: str) -> None:
    found = toml(text)
    assert not found.themes
    (trouble,) = found.problems
    assert "neuron-top.toml" in trouble
    assert told in trouble
    assert "\n" not in trouble


def test_a_change_of_keys() -> None:
    keymap = KeyMap({"quit": ["Q", "F10"], "show_overview": "V", "toggle_tree": [], "edit_filter": "Ctrl-G"})
    assert not keymap.problems
    assert {key for key, action in keymap.by_key.items() if action.name == "quit"} == {"Q", "f10", "ctrl+c"}
    assert keymap.by_key["V"].name == "show_overview"
    assert keymap.by_key["ctrl+g"].name == "edit_filter"
    assert not {"q", "o", "f2", "x", "slash"} & keymap.by_key.keys()
    assert keymap.changed["q"] == "Q, F10"
    assert keymap.changed["slash"] == "Ctrl-G"
    text = "\n".join(keys.help_lines(keymap.actions))
    assert "  Q, F10     quit" in text
    assert f"  -          {keymap.action('toggle_tree').text}" in text
    keymap = KeyMap({"quit": ["x", "f2"]})
    assert keymap.by_key["x"].name == "quit", "a key goes from one action to another"
    assert (keymap.action("toggle_tree").keys, keymap.action("show_overview").keys) == ((), ("o",))
    assert keymap.changed["o"] == "o"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"qiut": "x"}, "'qiut' is no action with keys to change; did you mean quit?"),
        ({"choose_tab": "x"}, "'choose_tab' is no action with keys to change"),
        ({"quit": 7}, "quit: give a key or a list of keys"),
        ({"quit": ["x", 7]}, "quit: give a key or a list of keys"),
        ({"quit": "Hyper-X"}, "quit: 'Hyper-X' is no key"),
        ({"quit": "F99"}, "quit: 'F99' is no key"),
        ({"quit": "ctrl+c"}, "quit: 'ctrl+c' can't be changed"),
        ({"quit": "3"}, "quit: '3' can't be changed"),
        ({"quit": "x", "show_help": "x"}, "show_help: 'x' is that of quit"),
    ],
)
def test_a_change_that_can_not_be(changes: dict[str, object], told: str) -> None:
    keymap = KeyMap(changes)
    assert keymap.problems == [told]
    assert "ctrl+c" in keymap.by_key
    assert keymap.action("show_help").keys


def test_keys_as_people_spell_them() -> None:
    spelled = {"/": "slash", "?": "question_mark", "Ctrl-X": "ctrl+x", "ctrl+f5": "ctrl+f5", "F5": "f5", "a": "a"}
    spelled |= {"A": "A", "PageUp": "pageup", "space": "space", "-": "minus", "Alt-m": "alt+m"}
    spelled |= {"": "", "nothing": "", "a+b": ""}
    assert {text: textual_key(text) for text in spelled} == spelled


def test_changed_keys_work_and_are_shown_and_clicks_do_what_they_show() -> None:
    keymap = KeyMap({"show_processes": "v", "show_help": "V", "quit": "question_mark"})
    dashboard = Dashboard(StillFeed(snapshots()), DashboardSettings(), UNICODE, keymap=keymap)
    bar = press(dashboard).splitlines()[-1]
    assert " v Who holds my cores " in bar
    assert not dashboard.press("w")
    press(dashboard, "v")
    assert dashboard.page == "processes"
    assert dashboard.click(press(dashboard).splitlines()[-1].index("V help"), 39)
    assert dashboard.open_dialog is not None
    assert dashboard.open_dialog.dialog.title == "Keys"


def test_the_manual_page_has_every_key_and_style() -> None:
    page = MANUAL.replace("\\-", "-").replace("\\e", "\\")
    listed = re.findall(r'^\.It Ic "\\&(.*)"\n(.*)$', page, re.MULTILINE)
    assert [shown for shown, _ in listed] == [action.shown for action in keys.ACTIONS]
    for (_, about), action in zip(listed, keys.ACTIONS, strict=True):
        spelled = {"Esc": "escape", "+": "+, =", "1-9": ", ".join("123456789"), "PgUp": "pageup", "PgDn": "pagedown"}
        named = spelled.get(action.shown, action.shown).split(", ")
        assert {textual_key(key) for key in named} == set(action.keys)
        assert about.replace("\\(aq", "'").casefold() == f"{action.text}.".casefold()
    section = MANUAL.partition("The styles are\n")[2].partition("\n.Pp\n")[0]
    assert section.replace(".Cm", "").replace("and", "").replace(",", "").split()[:-1] == list(THEMES["dark"].styles)


@given(st.dictionaries(st.sampled_from(NAMES), ANY_JSON, max_size=4).map(json.dumps) | st.text(max_size=30))
@example('{"window_seconds": NaN}')
@example('{"window_seconds": -1}')
@example('{"window_seconds": 1' + "0" * 400 + "}")
@example('{"columns": ["pid", "nothing"]}')
@example('{"sort": "nothing", "page": "nothing"}')
@example("[" * 100_000)
def test_settings_of_rubbish_are_told_in_a_line_and_the_screen_is_drawn(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("settings") / "neuron-top.json"
    path.write_text(text)
    found, trouble = load_settings(path)
    assert "\n" not in trouble
    for page in ("overview", "processes", "history"):
        found.show("page", page)
        dashboard = Dashboard(StillFeed(snapshots("trn1.2xlarge", "steady")), found, UNICODE)
        lines = press(dashboard, size=(80, 24)).splitlines()
        assert len(lines) == 24
        assert not any("can't be drawn" in line for line in lines)


@given(
    st.text(max_size=60)
    | st.sampled_from(["[keys]\n", "[themes.a]\n"]).flatmap(lambda head: st.text(max_size=40).map(head.__add__))
)
def test_any_file_of_themes_and_keys_is_read_or_told_in_lines(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("own") / "neuron-top.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    found = load_user_configuration(path)
    assert not any("\n" in trouble for trouble in (*found.problems, *KeyMap(found.keys).problems))


def put_in_place(path: Path, kind: str) -> None:
    path.parent.mkdir(exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_bytes(b"\xff\xfe" if kind == "binary" else b" " * (2**20 + 1))


@pytest.mark.parametrize("kind", ["pipe", "directory", "binary", "huge"])
def test_whatever_is_in_place_of_a_file_is_told(tmp_path: Path, kind: str) -> None:
    for name in ("neuron-top.json", "neuron-top.toml"):
        put_in_place(tmp_path / name, kind)
    kept, trouble = load_settings(tmp_path / "neuron-top.json")
    assert kept == DashboardSettings()
    assert "neuron-top.json can't be read (" in trouble
    found = load_user_configuration(tmp_path / "neuron-top.toml")
    assert (found.themes, found.keys) == ([], {})
    assert "neuron-top.toml can't be read (" in found.problems[0]


@pytest.mark.slow
def test_files_that_can_not_be_read_stop_no_dashboard(
    daemon: RunningDaemon, terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    put_in_place(tmp_path / "neurontools/neuron-top.json", "pipe")
    put_in_place(tmp_path / "neurontools/neuron-top.toml", "huge")
    top = terminal("--socket", daemon.socket, width=180)
    text = top.shows("can't be read")
    assert "neuron-top.json" in text
    assert "Traceback" not in text
    top.press("q")
    assert top.ends() == 0


def test_a_theme_of_ones_own_from_the_command_line(
    shared_daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(THEMES, "mine", THEMES["dark"])  # so that it is gone afterwards
    file = tmp_path / "neurontools/neuron-top.toml"
    file.parent.mkdir()

    def run(theme: str) -> Any:
        THEMES.pop("mine", None)  # as in a process of its own
        flags = ("--socket", shared_daemon.socket, "--once", "--color", "always", "--theme", theme)
        return call_main(command.main, *flags, XDG_CONFIG_HOME=str(tmp_path))

    file.write_text('[themes.mine]\nheading = "#12"\n')
    done = run("mine")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "heading: '#12' is not a colour" in done.stderr
    file.write_text('[themes.mine]\nheading = "#123456"\n')
    assert "38;2;18;52;86" in run("mine").stdout
    done = run("pink")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("give one of auto, dark, light, colour-blind, colour-blind-light, mono, mine\n")


def test_settings_are_kept_and_wrong_ones_told(tmp_path: Path) -> None:
    path = settings_path({"XDG_CONFIG_HOME": str(tmp_path / "config")})
    assert load_settings(path) == (DashboardSettings(), "")
    kept = DashboardSettings(
        theme="light", window_seconds=300.0, columns=("tag", "util"), then_sort="util", start_page="usage"
    )
    save_settings(path, kept)
    assert load_settings(path) == (kept, "")
    assert [file.name for file in path.parent.iterdir()] == ["neuron-top.json"]
    for text, told in (
        ('{"theme": 7, "sort": "util", "health": {"a": 5}}', "theme must be a text; the default is used (and 1 more)"),
        ('{"sort": "util", "health": {"stuck_seconds": 5}}', "the daemon judges"),
        ("[]", "holds no JSON object"),
        ("[", "can't be read"),
    ):
        path.write_text(text)
        kept, trouble = load_settings(path)
        assert told in trouble
        assert (kept.theme, kept.sort) == ("auto", "util" if "util" in text else "pid")


def test_what_holds_for_one_time_is_not_kept_unless_it_is_chosen(tmp_path: Path) -> None:
    path = tmp_path / "neuron-top.json"
    save_settings(path, DashboardSettings(page="health", theme="light"))
    settings, _ = load_settings(path)
    settings.show("page", "history")
    settings.show("theme", "mono")
    settings.show("ascii", True)
    assert (settings.page, settings.theme, settings.ascii) == ("history", "mono", True)
    settings.theme = "dark"
    save_settings(path, settings)
    assert load_settings(path)[0] == DashboardSettings(page="health", theme="dark", ascii=False)


def test_settings_in_a_linked_directory_and_where_there_can_be_none(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "config").symlink_to("dotfiles")
    save_settings(settings_path({"XDG_CONFIG_HOME": str(tmp_path / "config")}), DashboardSettings(theme="dark"))
    assert (tmp_path / "dotfiles/neurontools/neuron-top.json").is_file()
    (tmp_path / "file").touch()
    save_settings(tmp_path / "file/neuron-top.json", DashboardSettings(theme="dark"))
    assert load_settings(tmp_path / "file/neuron-top.json") == (DashboardSettings(), "")


@needs_two_users
@pytest.mark.parametrize("is_link", [True, False])
def test_nothing_is_written_in_the_home_of_another_user(is_link: bool) -> None:
    """As under sudo: what he puts there would lead root elsewhere."""
    with public_directory() as place:
        home, precious = place / "home", place / "precious"
        home.mkdir()
        precious.mkdir(mode=0o700)
        if is_link:
            (home / ".config").symlink_to(precious)
            os.chown(home / ".config", HOSTILE, HOSTILE, follow_symlinks=False)
        os.chown(home, HOSTILE, HOSTILE)
        save_settings(settings_path({"XDG_CONFIG_HOME": str(home / ".config")}), DashboardSettings())
        assert list(precious.iterdir()) == []
        assert [path.name for path in home.iterdir()] == [".config"] * is_link
        assert stat.S_IMODE(precious.stat().st_mode) == 0o700
