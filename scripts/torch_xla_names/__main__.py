"""`python scripts/torch_xla_names`: counts the names of torch_xla that other software uses, and those that exist here.

Run it with .venv/frameworks/bin/python (`make frameworks`), because it reads the sources of the libraries there.
samples.txt has the names that public samples use.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from neurontools.runtime.launch.install import install_runtime

PACKAGES = ("torch_xla", "torch_neuronx", "neuronx_distributed")
LIBRARIES = {
    "transformers": ("transformers",),
    "accelerate": ("accelerate",),
    "Lightning": ("lightning",),
    "PEFT and TRL": ("peft", "trl"),
}
SAMPLES = "samples of AWS and Google"


def used_by(package: str) -> set[str]:
    """Returns the full names that the sources of an installed package use. Executes nothing of the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed; run make frameworks and use .venv/frameworks/bin/python")
    found: set[str] = set()
    for path in Path(spec.origin).parent.rglob("*.py"):
        text = path.read_text("utf-8", errors="replace")
        if any(name in text for name in PACKAGES):
            found |= names_in(ast.parse(text))
    return found


def names_in(tree: ast.AST) -> set[str]:
    """Returns the full names that a module uses: torch_xla.core.xla_model.mark_step for `xm.mark_step()`."""
    known = dict(_imported(tree))
    found = set(known.values())
    for node in ast.walk(tree):
        name = _dotted(node, known) if isinstance(node, ast.Attribute) else None
        if name is not None:
            found.add(name)
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in PACKAGES:
                    yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
                    if not alias.asname:
                        yield alias.name, alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PACKAGES and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _dotted(node: ast.AST, known: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value, known)
        return None if before is None else f"{before}.{node.attr}"
    return None


def is_there(name: str) -> bool:
    """Whether a name exists here. A placeholder, whose error tells what to use instead, does not count."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for attribute in parts[length:]:
            value = getattr(value, attribute, None)
            if value is None or getattr(value, "__is_missing__", False):
                return False
        return not getattr(value, "__is_missing__", False)
    return False


def samples() -> set[str]:
    """Returns the names in samples.txt."""
    lines = (Path(__file__).parent / "samples.txt").read_text("utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def main() -> None:
    """Prints the table and the missing names."""
    install_runtime()
    used = {
        f"{title} {importlib.metadata.version(packages[0])}": set[str]().union(*(used_by(name) for name in packages))
        for title, packages in LIBRARIES.items()
    }
    used[SAMPLES] = samples()
    print("| used by | names | there |\n|---|---|---|")
    missing: set[str] = set()
    for title, names in used.items():
        absent = {name for name in names if not is_there(name)}
        missing |= absent
        print(f"| {title} | {len(names)} | {len(names) - len(absent)} |")
    print("\nNot there:", ", ".join(f"`{name}`" for name in sorted(missing)) or "none")


if __name__ == "__main__":
    sys.exit(main())
