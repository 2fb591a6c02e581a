"""The settings of neuron-top: kept whole, and never where another user leads."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from neurontools.tui.settings import Settings, load, save, settings_path
from tests.harness.hostile_user import HOSTILE, needs_two_users, public_directory


def test_settings_are_kept_in_a_directory_that_is_made(tmp_path: Path) -> None:
    path = settings_path({"XDG_CONFIG_HOME": str(tmp_path / "config")})
    save(path, Settings(theme="light", window_seconds=30.0))
    assert load(path) == (Settings(theme="light", window_seconds=30.0), "")
    assert [file.name for file in path.parent.iterdir()] == ["neuron-top.json"]


def test_what_holds_for_one_time_is_not_kept_unless_it_is_chosen(tmp_path: Path) -> None:
    path = tmp_path / "neuron-top.json"
    save(path, Settings(page="health", theme="light"))
    settings, _ = load(path)
    settings.show("page", "history")
    settings.show("theme", "mono")
    settings.show("ascii", True)
    assert (settings.page, settings.theme, settings.ascii) == ("history", "mono", True)
    settings.theme = "dark"
    save(path, settings)
    assert load(path)[0] == Settings(page="health", theme="dark", ascii=False)


def test_a_configuration_directory_of_ones_own_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "config").symlink_to("dotfiles")
    save(settings_path({"XDG_CONFIG_HOME": str(tmp_path / "config")}), Settings(theme="dark"))
    assert (tmp_path / "dotfiles/neurontools/neuron-top.json").is_file()


def test_a_full_or_forbidden_place_stands_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    save(tmp_path / "file" / "neuron-top.json", Settings())
    assert load(tmp_path / "file" / "neuron-top.json")[0] == Settings()


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
        save(settings_path({"XDG_CONFIG_HOME": str(home / ".config")}), Settings())
        assert list(precious.iterdir()) == []
        assert [path.name for path in home.iterdir()] == [".config"] * is_link
        assert stat.S_IMODE(precious.stat().st_mode) == 0o700
