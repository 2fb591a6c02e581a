"""What the reader writes for neuron-top himself, as TOML under XDG_CONFIG_HOME: themes and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from neurontools.tui.small_file import read_text
from neurontools.util.terminal import escape_controls
from neurontools.views.drawing.own_theme import InvalidTheme, own_theme
from neurontools.views.drawing.style import THEMES, Theme

_TABLES = ("themes", "keys")


@dataclass(slots=True)
class Configuration:
    """What a file holds. `troubles` has a line for each thing that is wrong with it, which then counts as not said."""

    themes: list[Theme] = field(default_factory=list)
    keys: dict[str, object] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)

    def register(self) -> None:
        """Has its themes among those there are."""
        THEMES.update({theme.name: theme for theme in self.themes})


def configuration_path(settings_path: Path) -> Path:
    """Where it is: beside the settings."""
    return settings_path.with_suffix(".toml")


def load(path: Path) -> Configuration:
    """What the file says; nothing where it is missing or can't be read."""
    found = Configuration()
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        found.troubles.append(f"{escape_controls(str(path))} can't be read ({error}); it counts as empty")
        return found
    if text is None:
        return found
    import tomllib

    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        found.troubles.append(
            f"{escape_controls(str(path))} is no TOML: {escape_controls(str(error))}; it counts as empty"
        )
        return found
    for problem in _read(tables, found):
        found.troubles.append(escape_controls(f"{path}: {problem}"))
    return found


def _read(tables: Mapping[str, object], found: Configuration) -> list[str]:
    problems = [
        f"[{name[:40]}] is not known; there are [themes.NAME] and [keys]" for name in tables if name not in _TABLES
    ]
    themes, keys = tables.get("themes", {}), tables.get("keys", {})
    if isinstance(themes, Mapping):
        for name, table in themes.items():
            try:
                found.themes.append(own_theme(name, table))
            except InvalidTheme as error:
                problems.append(f"[themes.{name[:40]}] {error}")
    else:
        problems.append("themes must be tables, such as [themes.mine]")
    if isinstance(keys, Mapping):
        found.keys = dict(keys)
    else:
        problems.append("keys must be a table")
    return problems


def told(troubles: list[str]) -> str:
    """What is wrong, in one line; "" for nothing."""
    more = f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""
    return f"{troubles[0]}{more}" if troubles else ""
