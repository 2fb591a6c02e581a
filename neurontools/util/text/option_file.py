"""A small TOML file that an option names: a line a key, nothing in it that isn't known."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neurontools.util.errors import EXIT_NOT_FOUND, EXIT_USAGE, UserError
from neurontools.util.text.terminal import cut, visible

_MOST_BYTES = 2**16


def place_of(option: str, path: str) -> str:
    """How errors name the file."""
    return f"{option} {cut(visible(path), 200)}"


def read_options(option: str, path: str, usual: Mapping[str, object]) -> dict[str, Any]:
    """The keys that a file has; UserError with its name for whatever is wrong.

    `usual` has the default of each key that there may be, which tells what it takes: None a text, a tuple a list of
    texts, which becomes a tuple, and a bool true or false.
    """
    at = place_of(option, path)
    try:
        with Path(path).open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise UserError(f"{at}: is larger than {_MOST_BYTES >> 10} KiB; it has a few lines", EXIT_USAGE)
        table = tomllib.loads(data.decode())
    except FileNotFoundError:
        raise UserError(f"{at}: there is no such file; see neuron-top(1)", EXIT_NOT_FOUND) from None
    except OSError as error:
        raise UserError(f"{at}: {error.strerror}; give a readable file", EXIT_USAGE) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{at}: is no TOML: {cut(visible(str(error)), 100)}", EXIT_USAGE) from None
    found: dict[str, Any] = {}
    for name, value in table.items():
        if name not in usual:
            raise UserError(f"{at}: {cut(visible(name), 40)!r} is not known; there are {', '.join(usual)}", EXIT_USAGE)
        found[name] = _checked(f"{at}: {name}", value, usual[name])
    return found


def _checked(at: str, value: object, usual: object) -> object:
    if isinstance(usual, bool):
        if isinstance(value, bool):
            return value
        raise UserError(f"{at} is neither true nor false", EXIT_USAGE)
    if isinstance(usual, tuple):
        if isinstance(value, list) and all(map(_is_text, value)):
            return tuple(value)
        raise UserError(f"{at} is no list of texts in quotes", EXIT_USAGE)
    if _is_text(value):
        return value
    raise UserError(f"{at} is no text in quotes", EXIT_USAGE)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value
