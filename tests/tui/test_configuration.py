"""Themes and keys of the reader's own, and files of rubbish in place of what he or the program wrote."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from neurontools.tui import configuration, keys, settings
from neurontools.tui.configuration import Configuration
from neurontools.tui.dashboard import Dashboard
from neurontools.tui.key_map import KeyMap, textual_key
from neurontools.tui.settings import Settings
from neurontools.views.drawing.glyphs import UNICODE
from neurontools.views.drawing.line import plain
from neurontools.views.drawing.style import THEMES, Style
from tests.harness.dashboard_terminal import TOP, Terminal
from tests.harness.paths import ROOT
from tests.harness.running_daemon import RunningDaemon
from tests.harness.still_feed import StillFeed, snapshots


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str], Configuration]:
    def loaded(text: str) -> Configuration:
        path = tmp_path / "neuron-top.toml"
        path.write_text(text)
        return configuration.load(path)

    return loaded


def test_a_theme_changes_what_it_names(read: Callable[[str], Configuration]) -> None:
    found = read(
        """
        [themes.mine]
        base = "light"
        selected = "#102030"
        busy = "#ff00ff"
        dim = ""
        title = { background = "#550055", bold = false }
        """
    )
    assert not found.troubles
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
        ("[themes.mine]\nbusy = '#12'", "[themes.mine] busy: '#12' is no colour; give \"#rrggbb\""),
        ("[themes.mine]\nbusy = 7", "busy: 7 is no colour"),
        ("[themes.mine]\ncolour = '#123456'", "'colour' is no style; there are selected, text"),
        ("[themes.mine]\nbusy = { bold = 1 }", "busy.bold: 1 is neither true nor false"),
        ("[themes.mine]\nbusy = { blink = true }", "busy: 'blink' is none of color, background, bold"),
        ("[themes.mine]\nbase = 'pink'", "base: 'pink' is none of dark, light"),
        ("[themes.dark]\nbusy = '#123456'", "'dark' can't be its name"),
        ("[themes.'a b']\n", "'a b' can't be its name"),
        ("themes = 5", "themes must be tables"),
        ("[themes]\nmine = 5", "[themes.mine] must be a table of styles"),
        ("keys = 5", "keys must be a table"),
        ("[colours]", "[colours] is not known; there are [themes.NAME] and [keys]"),
        ("[themes", "is no TOML: "),
        ("a = " + "[" * 5000, "is no TOML: "),
    ],
)
def test_what_is_wrong_in_the_file(read: Callable[[str], Configuration], text: str, told: str) -> None:
    found = read(text)
    assert not found.themes
    (trouble,) = found.troubles
    assert "neuron-top.toml" in trouble
    assert told in trouble
    assert "\n" not in trouble


def test_a_change_of_keys() -> None:
    keymap = KeyMap({"quit": ["Q", "F10"], "show_overview": "V", "toggle_tree": [], "edit_filter": "Ctrl-G"})
    assert not keymap.troubles
    assert {key: action.name for key, action in keymap.by_key.items() if action.name == "quit"} == {
        "Q": "quit",
        "f10": "quit",
        "ctrl+c": "quit",
    }
    assert keymap.by_key["V"].name == "show_overview"
    assert keymap.by_key["ctrl+g"].name == "edit_filter"
    assert not {"q", "o", "f2", "x", "slash"} & keymap.by_key.keys()
    assert keymap.changed["q"] == "Q, F10"
    assert keymap.changed["slash"] == "Ctrl-G"
    text = "\n".join(keys.help_lines(keymap.actions))
    assert "  Q, F10     quit" in text
    assert f"  -          {keymap.action('toggle_tree').text}" in text


def test_a_key_goes_from_one_action_to_another() -> None:
    keymap = KeyMap({"quit": "x"})
    assert keymap.by_key["x"].name == "quit"
    assert keymap.action("toggle_tree").keys == ()
    keymap = KeyMap({"quit": "f2"})
    assert keymap.action("show_overview").keys == ("o",)
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
    assert keymap.troubles == [told]
    assert "ctrl+c" in keymap.by_key
    assert keymap.action("show_help").keys


def test_keys_as_people_spell_them() -> None:
    spelled = {
        "/": "slash",
        "?": "question_mark",
        "Ctrl-X": "ctrl+x",
        "ctrl+f5": "ctrl+f5",
        "F5": "f5",
        "a": "a",
        "A": "A",
    }
    spelled |= {"PageUp": "pageup", "space": "space", "-": "minus", "Alt-m": "alt+m", "": "", "nothing": "", "a+b": ""}
    assert {text: textual_key(text) for text in spelled} == spelled


def test_changed_keys_work_and_are_shown_and_clicks_do_what_they_show() -> None:
    dashboard = Dashboard(StillFeed(snapshots()), Settings(), UNICODE, keymap=KeyMap({"show_processes": "v"}))
    bar = plain(dashboard.draw(120, 40).lines[-1])
    assert " v Who holds my cores " in bar
    assert not dashboard.press("w")
    assert dashboard.press("v")
    assert dashboard.page == "processes"
    changed = Dashboard(
        StillFeed(snapshots()), Settings(), UNICODE, keymap=KeyMap({"show_help": "V", "quit": "question_mark"})
    )
    bar = plain(changed.draw(120, 40).lines[-1])
    assert changed.click(bar.index("V help"), 39)
    assert changed.choices is not None
    assert changed.choices.dialog.title == "Keys"


def test_the_names_of_the_actions_can_be_asked_for() -> None:
    done = subprocess.run([*TOP, "--help-keys"], capture_output=True, text=True, check=True)
    assert all(f"  {action.name} " in done.stdout for action in keys.ACTIONS)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = list(Settings().kept())


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
    found, trouble = settings.load(path)
    assert "\n" not in trouble
    for page in ("overview", "processes", "history"):
        found.show("page", page)
        dashboard = Dashboard(StillFeed(snapshots("trn1.2xlarge", "steady")), found, UNICODE)
        assert len(dashboard.draw(80, 24).lines) == 24
        assert not any("can't be drawn" in plain(line) for line in dashboard.draw(80, 24).lines)


@given(
    st.text(max_size=60)
    | st.sampled_from(["[keys]\n", "[themes.a]\n"]).flatmap(lambda head: st.text(max_size=40).map(head.__add__))
)
def test_any_file_of_themes_and_keys_is_read_or_told_in_lines(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("own") / "neuron-top.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    found = configuration.load(path)
    keymap = KeyMap(found.keys)
    for trouble in (*found.troubles, *keymap.troubles):
        assert "\n" not in trouble


@pytest.mark.parametrize("name", ["neuron-top.json", "neuron-top.toml"])
@pytest.mark.parametrize("kind", ["pipe", "directory", "binary", "huge"])
def test_whatever_is_in_its_place_is_told_and_stops_nothing(
    daemon: RunningDaemon, terminal: Callable[..., Terminal], tmp_path: Path, name: str, kind: str
) -> None:
    place = tmp_path / "neurontools" / name
    place.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
    else:
        place.write_bytes(b"\xff\xfe" if kind == "binary" else b" " * (2**20 + 1))
    top = terminal("--socket", daemon.socket, width=180)
    text = top.shows("can't be read")
    assert name in text
    assert "Traceback" not in text
    top.press("q")
    assert top.ends() == 0


def test_a_theme_of_ones_own_from_the_command_line(daemon: RunningDaemon, tmp_path: Path) -> None:
    (tmp_path / "neurontools").mkdir()
    file = tmp_path / "neurontools/neuron-top.toml"
    file.write_text('[themes.mine]\nheading = "#123456"\n')

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        flags = ("--socket", daemon.socket, "--once", "--color", "always")
        environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
        return subprocess.run([*TOP, *flags, *arguments], capture_output=True, text=True, check=False, env=environment)

    assert "38;2;18;52;86" in run("--theme", "mine").stdout
    done = run("--theme", "pink")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("give one of auto, dark, light, colour-blind, colour-blind-light, mono, mine\n")
    file.write_text('[themes.mine]\nheading = "#12"\n')
    done = run("--theme", "mine")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "heading: '#12' is no colour" in done.stderr


def test_the_manual_page_names_every_style_of_a_theme() -> None:
    page = (ROOT / "man/neuron-top.1").read_text("utf-8")
    section = page.partition("The styles are\n")[2].partition("\n.Pp\n")[0]
    assert section.replace(".Cm", "").replace("and", "").replace(",", "").split()[:-1] == list(THEMES["dark"].styles)
