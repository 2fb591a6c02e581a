"""What neuron-top remembers from one time to the next, as JSON under XDG_CONFIG_HOME."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from neurontools.tui.small_file import read_text
from neurontools.util.directory import Directory
from neurontools.util.terminal import escape_controls

_OF_COLUMNS = ("sort", "then_sort", "columns")
_OF_PAGES = ("page", "start_page")
_WORDS = {"colour_by": ("utilization", "memory")}
_BOUNDS = {"window_seconds": (1.0, 86400.0), "idle_below_percent": (0.0, 100.0), "late_after_seconds": (0.0, 1e6)}


@dataclass
class Settings:
    """The choices that are kept."""

    theme: str = "auto"
    ascii: bool = False
    page: str = "overview"
    show_flops: bool = False
    is_compact: bool = False
    sort: str = "pid"
    is_descending: bool = False
    window_seconds: float = 60.0
    colour_by: str = "utilization"
    then_sort: str = ""  # the column that decides where the first is alike; "" for none
    is_then_descending: bool = False
    columns: tuple[str, ...] = ()  # those of the process list, in this order; none: those that there is room for
    start_page: str = ""  # to begin with; "" for the one that was looked at last
    idle_below_percent: float = 2.0  # a held core that is less busy is shown as idle
    late_after_seconds: float = 30.0  # since the last execution ended; longer is marked

    @property
    def first_page(self) -> str:
        """The page to begin with."""
        return self.page if "page" in self.__dict__.get("_stored", {}) else self.start_page or self.page

    def __setattr__(self, name: str, value: object) -> None:
        """Whatever is assigned is a choice, and kept."""
        object.__setattr__(self, name, value)
        self.__dict__.get("_stored", {}).pop(name, None)

    def show(self, name: str, value: object) -> None:
        """Has a choice hold for this time alone, as an option of the command line does: what was stored stays."""
        stored = self.__dict__.setdefault("_stored", {})
        stored.setdefault(name, getattr(self, name))
        object.__setattr__(self, name, value)

    def kept(self) -> dict[str, object]:
        """What to store: what was chosen, or was stored before."""
        stored: dict[str, object] = self.__dict__.get("_stored", {})
        return asdict(self) | stored


def settings_path(environment: Mapping[str, str]) -> Path:
    """Where the settings are kept."""
    base = environment.get("XDG_CONFIG_HOME", "")
    root = Path(base) if base.startswith("/") else Path.home() / ".config"
    return root / "neurontools" / "neuron-top.json"


def load(path: Path) -> tuple[Settings, str]:
    """The settings in a file, and what is wrong with it ("" for nothing; a missing file is fine)."""
    shown = escape_controls(str(path))
    try:
        text = read_text(path)
        given = json.loads(text) if text is not None else {}
    except (OSError, ValueError, RecursionError) as error:
        return Settings(), f"{shown} can't be read ({escape_controls(str(error))}); the defaults are used"
    settings = Settings()
    if not isinstance(given, dict):
        return settings, f"{shown} holds no JSON object; the defaults are used"
    troubles: list[str] = []
    for field in fields(Settings):
        if field.name not in given:
            continue
        value, default = given[field.name], getattr(settings, field.name)
        if isinstance(default, tuple) and isinstance(value, list):
            value = tuple(value)
        elif isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool) and value < 10**12:
            value = float(value)
        if type(value) is not type(default):
            kind = {"str": "a text", "bool": "true or false", "tuple": "a list"}.get(type(default).__name__, "a number")
            troubles.append(f"{field.name} must be {kind}; the default is used")
        elif wrong := _wrong(field.name, value):
            troubles.append(f"{field.name}: {wrong}; the default is used")
        else:
            setattr(settings, field.name, value)
    if given.get("health"):
        troubles.append("health is not used any more: the daemon judges, by [health] of its configuration")
    more = f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""
    return settings, f"{shown}: {troubles[0]}{more}" if troubles else ""


def _wrong(name: str, value: object) -> str:
    """Why a value of the right type can't be meant; "" when it can."""
    if name in _BOUNDS and isinstance(value, float):
        low, high = _BOUNDS[name]
        return "" if low <= value <= high else f"{value:g} is not from {low:g} to {high:g}"  # NaN is not either
    names: Sequence[str] = _WORDS.get(name, ())
    if name in _OF_COLUMNS:
        from neurontools.views.processes.columns import BY_KEY

        names = ["", *BY_KEY] if name == "then_sort" else list(BY_KEY)
    elif name in _OF_PAGES:
        from neurontools.views.pages import PAGES

        names = [*([""] if name == "start_page" else []), *(page.name for page in PAGES)]
    for one in value if isinstance(value, tuple) else (value,):
        if names and one not in names:
            return f"{escape_controls(repr(one))[:60]} is none of {', '.join(filter(None, names))}"
    return ""


def save(path: Path, settings: Settings) -> None:
    """Write the settings, whole or not at all; a place that can't be written stands in nobody's way.

    Nor does one of another user: under sudo the home may be that of who called it.
    """
    with suppress(OSError), Directory.open(path.parent, make_mode=0o755) as directory:
        directory.replace(path.name, f"{json.dumps(settings.kept(), indent=2)}\n".encode())
