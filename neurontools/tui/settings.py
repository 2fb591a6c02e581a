"""Reads and writes neuron-top's files under XDG_CONFIG_HOME: saved settings, and the user's themes and keys."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path

from neurontools.util.directory import Directory
from neurontools.util.terminal import escape_controls
from neurontools.views.dashboard_settings import DashboardSettings
from neurontools.views.drawing.lines import THEMES, InvalidTheme, Theme, parse_theme
from neurontools.views.drawing.render_context import LAYOUTS, OVERVIEW_PANELS, PLOT_METRICS

_OF_COLUMNS = ("sort", "then_sort", "columns")
_OF_PAGES = ("page", "start_page")
_WORDS = {
    "colour_by": ("utilization", "memory"),
    "layout": LAYOUTS,
    "panels": OVERVIEW_PANELS,
    "plot_metric": PLOT_METRICS,
}
_BOUNDS = {"window_seconds": (1.0, 86400.0), "idle_below_percent": (0.0, 100.0), "late_after_seconds": (0.0, 1e6)}


def settings_path(environment: Mapping[str, str]) -> Path:
    """Returns the path of neuron-top.json under XDG_CONFIG_HOME, or under ~/.config."""
    base = environment.get("XDG_CONFIG_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".config"
    return root / "neurontools" / "neuron-top.json"


def load_settings(path: Path) -> tuple[DashboardSettings, str]:
    """Returns the settings from a file, and an error text: "" if the file is valid or missing."""
    shown = escape_controls(str(path))
    try:
        text = read_regular_file(path)
        given = json.loads(text) if text is not None else {}
    except (OSError, ValueError, RecursionError) as error:
        return DashboardSettings(), f"{shown} can't be read ({escape_controls(str(error))}); the defaults are used"
    settings = DashboardSettings()
    if not isinstance(given, dict):
        return settings, f"{shown} holds no JSON object; the defaults are used"
    problems: list[str] = []
    for setting in fields(DashboardSettings):
        if setting.name not in given:
            continue
        value, default = given[setting.name], getattr(settings, setting.name)
        if isinstance(default, tuple) and isinstance(value, list):
            value = tuple(value)
        elif isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool) and value < 10**12:
            value = float(value)
        if type(value) is not type(default):
            kind = {"str": "a text", "bool": "true or false", "tuple": "a list"}.get(type(default).__name__, "a number")
            problems.append(f"{setting.name} must be {kind}; the default is used")
        elif wrong := _invalid_reason(setting.name, value):
            problems.append(f"{setting.name}: {wrong}; the default is used")
        else:
            setattr(settings, setting.name, value)
    if given.get("health"):
        problems.append("health is not used any more: the daemon judges, by [health] of its configuration")
    return settings, f"{shown}: {summarize_problems(problems)}" if problems else ""


def _invalid_reason(name: str, value: object) -> str:
    """Returns why a setting's value, already of the right type, is invalid; "" if it is valid."""
    if name in _BOUNDS and isinstance(value, float):
        low, high = _BOUNDS[name]
        # NaN is invalid, because a comparison with NaN is false.
        return "" if low <= value <= high else f"{value:g} is not from {low:g} to {high:g}"
    names: Sequence[str] = _WORDS.get(name, ())
    if name in _OF_COLUMNS:
        from neurontools.views.process_table import BY_KEY

        names = ["", *BY_KEY] if name == "then_sort" else list(BY_KEY)
    elif name in _OF_PAGES:
        from neurontools.views.screen import PAGES

        names = [*([""] if name == "start_page" else []), *(page.name for page in PAGES)]
    for one in value if isinstance(value, tuple) else (value,):
        if names and one not in names:
            return f"{escape_controls(repr(one))[:60]} is none of {', '.join(filter(None, names))}"
    return ""


def save_settings(path: Path, settings: DashboardSettings) -> None:
    """Writes the settings file atomically. Does nothing if the directory is not writable or another user owns it.

    Under sudo, HOME may still be the home of the calling user, who then owns the directory.
    """
    with suppress(OSError), Directory.open(path.parent, make_mode=0o755) as directory:
        directory.replace(path.name, f"{json.dumps(settings.values_to_save(), indent=2)}\n".encode())


_MOST_BYTES = 2**20


def read_regular_file(path: Path) -> str | None:
    """Returns the text of a regular file; None if it does not exist.

    Raises OSError or ValueError if the file is no readable UTF-8 text of at most 1 MiB. Never blocks on a pipe.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no file")
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError("it is longer than 1 MiB")
    return content.decode("utf-8")


@dataclass(slots=True)
class UserConfiguration:
    """The user's themes and keys from neuron-top.toml. `problems` has an error text for each ignored part."""

    themes: list[Theme] = field(default_factory=list)
    keys: dict[str, object] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def register(self) -> None:
        """Adds the user's themes to the global table THEMES."""
        THEMES.update({theme.name: theme for theme in self.themes})


def configuration_path(settings_path: Path) -> Path:
    return settings_path.with_suffix(".toml")


def load_user_configuration(path: Path) -> UserConfiguration:
    """Reads a configuration file. Returns an empty configuration if the file is missing or unreadable."""
    found = UserConfiguration()
    try:
        text = read_regular_file(path)
    except (OSError, ValueError) as error:
        found.problems.append(f"{escape_controls(str(path))} can't be read ({error}); it counts as empty")
        return found
    if text is None:
        return found
    import tomllib

    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        found.problems.append(escape_controls(f"{path} is no TOML: {error}; it counts as empty"))
        return found
    found.problems += [escape_controls(f"{path}: {problem}") for problem in _read_tables(tables, found)]
    return found


def _read_tables(tables: Mapping[str, object], found: UserConfiguration) -> list[str]:
    unknown = [name for name in tables if name not in ("themes", "keys")]
    problems = [f"[{name[:40]}] is not known; there are [themes.NAME] and [keys]" for name in unknown]
    themes, keys = tables.get("themes", {}), tables.get("keys", {})
    if isinstance(themes, Mapping):
        for name, table in themes.items():
            try:
                found.themes.append(parse_theme(name, table))
            except InvalidTheme as error:
                problems.append(f"[themes.{name[:40]}] {error}")
    else:
        problems.append("themes must be tables, such as [themes.mine]")
    if isinstance(keys, Mapping):
        found.keys = dict(keys)
    else:
        problems.append("keys must be a table")
    return problems


def summarize_problems(problems: Sequence[str]) -> str:
    """Returns the first error text and the number of further errors; "" if there is no error."""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{problems[0]}{more}" if problems else ""
