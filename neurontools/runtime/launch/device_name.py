"""Chooses the name of the device in this process, `xla` or `neuron`, because torch allows one name per process.

The first rule that applies decides:

1. The name in NEURONTOOLS_DEVICE, if it is set.
2. The name in a command-line argument, such as `--device=neuron`, `--device neuron` or `trainer.accelerator=neuron`.
   Then the name in a configuration file (JSON, YAML, TOML, INI) among the arguments.
3. neuron if the script (the file that the launcher starts, or `__main__`) contains the string `"neuron"`,
   `"neuron:0"`, …, or uses `torch.neuron`; but xla if it contains `"xla"`, `"xla:0"`, … too.
4. xla, because the script, or a module that it imports, may import torch_xla."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from neurontools.runtime.reporting.stderr_lines import write_stderr_line

DEVICE_VARIABLE = "NEURONTOOLS_DEVICE"
DEVICE_NAMES = ("xla", "neuron")
_VALUE = re.compile(r"(xla|neuron)(:\d+)?")
_KEY = re.compile(r"device|accelerator|backend|hardware|platform", re.IGNORECASE)
_SETTING = re.compile(r"""([\w.-]+)["']?\s*[:=]\s*["']?(xla|neuron)(?::\d+)?["']?\s*(?:[,}\]#;]|$)""")
_CONFIGURATIONS = (".json", ".yaml", ".yml", ".toml", ".ini", ".cfg")
_LARGEST_SCRIPT_BYTES = 4 << 20
_LARGEST_CONFIGURATION_BYTES = 1 << 20


class InvalidDeviceName(ValueError):
    """NEURONTOOLS_DEVICE is neither xla nor neuron."""


@dataclass(frozen=True, slots=True)
class DeviceNameChoice:
    """The chosen device name. If the script uses the other device name, the error shows `reason`.

    `is_named` is False if nothing names a device; the name is then `xla`.
    """

    name: str
    reason: str
    is_named: bool = True


def device_name(
    environment: Mapping[str, str], script: str | Path | bytes | None, arguments: Sequence[str] = ()
) -> str:
    """Returns the device name that the rules in this module's docstring give."""
    return choose_device_name(environment, script, arguments).name


def choose_device_name(
    environment: Mapping[str, str], script: str | Path | bytes | None, arguments: Sequence[str] = ()
) -> DeviceNameChoice:
    """Chooses the device name by the rules in this module's docstring. Ignores files that can't be read.

    `script` is the path of a script, or the source itself.
    """
    wanted = environment.get(DEVICE_VARIABLE, "")
    if wanted:
        if wanted not in DEVICE_NAMES:
            raise InvalidDeviceName(
                f"{DEVICE_VARIABLE}={wanted!r}: no such device name; set it to xla or neuron, or unset it"
            )
        return DeviceNameChoice(wanted, f"{DEVICE_VARIABLE}={wanted}")
    for found in (*_names_in_arguments(arguments), *_names_in_configurations(arguments)):
        return found
    if script is None:
        return DeviceNameChoice("xla", "nothing names neuron", is_named=False)
    if isinstance(script, bytes):
        return _name_for_source(script, "the script")
    return _name_for_script(Path(script))


def _names_in_arguments(arguments: Sequence[str]) -> Iterator[DeviceNameChoice]:
    for index, argument in enumerate(arguments):
        key, has_value, value = argument.partition("=")
        if not has_value and argument.startswith("-") and index + 1 < len(arguments):
            value = arguments[index + 1]
        match = _VALUE.fullmatch(value.strip("\"'"))
        if match is not None and _KEY.search(key):
            yield DeviceNameChoice(match[1], f"the command line has {argument if has_value else f'{argument} {value}'}")


def _names_in_configurations(arguments: Sequence[str]) -> Iterator[DeviceNameChoice]:
    for argument in arguments:
        path = Path(argument.partition("=")[2] or argument)
        if path.suffix.lower() not in _CONFIGURATIONS:
            continue
        try:
            if not path.is_file() or path.stat().st_size > _LARGEST_CONFIGURATION_BYTES:
                continue
            lines = path.read_text("utf-8", errors="replace").splitlines()
        except (OSError, ValueError):
            continue
        for line in lines:
            if line.lstrip().startswith(("#", ";")):
                continue
            for match in _SETTING.finditer(line):
                if _KEY.search(match[1]):
                    yield DeviceNameChoice(match[2], f"{path.name} has {match[1]}: {match[2]}")


def _name_for_script(script: Path) -> DeviceNameChoice:
    try:
        if script.stat().st_size > _LARGEST_SCRIPT_BYTES:
            return DeviceNameChoice("xla", f"{script.name} is too large to be searched", is_named=False)
        return _name_for_source(script.read_bytes(), script.name)
    except OSError:
        return DeviceNameChoice("xla", f"{script.name} can't be read", is_named=False)


def _name_for_source(source: bytes, called: str) -> DeviceNameChoice:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return DeviceNameChoice("xla", f"{called} can't be read", is_named=False)
    names = {name for node in ast.walk(tree) if (name := _named_device(node))}
    if names == {"neuron"}:
        return DeviceNameChoice("neuron", f"{called} names neuron")
    return DeviceNameChoice("xla", f"{called} names {' and '.join(sorted(names)) or 'no device'}", is_named=bool(names))


def _named_device(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(str(text)):
            named = _VALUE.fullmatch(text)
            return named and named[1]
        case ast.Attribute(ast.Name("torch"), "neuron"):
            return "neuron"
    return None


_UNKNOWN_TO_TORCH = re.compile(
    r"Expected one of cpu, .* device type at start of device string: (\w+)"
    r"|Unknown backend type (\w+)"
    r"|Could not run '.*' with arguments from the '(XLA)' backend"
    r"|not linked with support for (xla) devices"
    r"|module 'torch' has no attribute '(neuron)'",
    re.DOTALL,
)
_REFUSED_BY_ACCELERATE = "gather objects in TPU is not supported"


def explain_other_name(choice: DeviceNameChoice) -> None:
    """Makes sys.excepthook explain errors that the other device name avoids. Call it once."""
    shown = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        shown(kind, error, traceback)
        text = other_name_message(error, choice)
        if text is not None:
            write_stderr_line(f"neurontools: {text}")

    sys.excepthook = show


def other_name_message(error: BaseException, choice: DeviceNameChoice) -> str | None:
    """Returns a line that explains an error that the other device name avoids. None for any other error."""
    if choice.name == "xla" and isinstance(error, NotImplementedError) and str(error) == _REFUSED_BY_ACCELERATE:
        return (
            "accelerate gathers no Python objects, which TRL's GRPOTrainer needs, on a device with the name 'xla'; "
            f"set {DEVICE_VARIABLE}=neuron"
        )
    match = _UNKNOWN_TO_TORCH.search(str(error))
    other = DEVICE_NAMES[1 - DEVICE_NAMES.index(choice.name)]
    if match is None or next(filter(None, match.groups())).lower() != other:
        return None
    return (
        f"torch allows one name for the device in a process; here it is {choice.name!r}, because {choice.reason}; "
        f"set {DEVICE_VARIABLE}={other} to use {other!r}"
    )
