"""Under which name torch knows the device in this process: `xla` or `neuron`.

torch allows one. The rule, first match:

1. NEURONTOOLS_DEVICE=xla or neuron.
2. The script (the file that the launcher starts, or `__main__`) imports torch_xla, torch_neuronx or
   neuronx_distributed anywhere: xla.
3. The script has the device name `"neuron"`, `"neuron:0"`, … as a string, or uses `torch.neuron`: neuron.
4. Otherwise xla, because torch_xla may yet be imported by a module of the script.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "NEURONTOOLS_DEVICE"
NAMES = ("xla", "neuron")
_NATIVE = re.compile(r"neuron(:\d+)?")
_LAZY_PACKAGES = frozenset({"torch_xla", "torch_neuronx", "neuronx_distributed"})
_LARGEST_SCRIPT_BYTES = 4 << 20


class InvalidDeviceName(ValueError):
    """NEURONTOOLS_DEVICE has another value than xla or neuron."""


def device_name(environment: Mapping[str, str], script: str | Path | None) -> str:
    """The name by the rule above; a script that can't be read or parsed counts as one that says nothing."""
    wanted = environment.get(VARIABLE, "")
    if wanted:
        if wanted not in NAMES:
            raise InvalidDeviceName(f"{VARIABLE}={wanted!r}: no such device name; set it to xla or neuron, or unset it")
        return wanted
    return "neuron" if script is not None and _is_native(Path(script)) else "xla"


def _is_native(script: Path) -> bool:
    try:
        if script.stat().st_size > _LARGEST_SCRIPT_BYTES:
            return False
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    native = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            native = native or _names_neuron(node)
            continue
        if any(module.partition(".")[0] in _LAZY_PACKAGES for module in modules):
            return False
    return native


def _names_neuron(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and _NATIVE.fullmatch(node.value) is not None
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "neuron"
        and isinstance(node.value, ast.Name)
        and node.value.id == "torch"
    )
