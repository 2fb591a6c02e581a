"""What neuron-top remembers from one time to the next, as JSON under XDG_CONFIG_HOME."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from neurontools.files.directory import Directory


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
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Settings(), ""
    except (OSError, ValueError) as error:
        return Settings(), f"{path} can't be read ({error}); the defaults are used"
    settings = Settings()
    if not isinstance(given, dict):
        return settings, f"{path} holds no JSON object; the defaults are used"
    trouble = ""
    if given.get("health"):
        trouble = f"{path}: health is not used any more: the daemon judges, by [health] of its configuration"
    for field in fields(Settings):
        if field.name not in given:
            continue
        value, default = given[field.name], getattr(settings, field.name)
        is_number = isinstance(default, float) and isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number or type(value) is type(default):
            setattr(settings, field.name, float(value) if is_number else value)
        else:
            trouble = f"{path}: {field.name} must be {type(default).__name__}; the default is used"
    return settings, trouble


def save(path: Path, settings: Settings) -> None:
    """Write the settings, whole or not at all; a place that can't be written stands in nobody's way.

    Nor does one of another user: under sudo the home may be that of who called it.
    """
    with suppress(OSError), Directory.open(path.parent, make_mode=0o755) as directory:
        directory.replace(path.name, f"{json.dumps(settings.kept(), indent=2)}\n".encode())
