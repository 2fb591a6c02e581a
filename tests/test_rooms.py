"""The size of the product's modules; `make imports` checks the direction of imports."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOUSES = (ROOT / "neurontools", ROOT / "daemon" / "neurond")
LONGEST_MODULE_LINES = 600
SMALL_MODULE_LINES = 60
MOST_SMALL_MODULES = 15  # with one importer: a module that must be imported late, or without torch
GENERATED = ("_pb2.py", "_pb2_grpc.py")


def modules() -> list[Path]:
    """All modules of the library and the daemon that somebody wrote."""
    found = [path for house in HOUSES for path in sorted(house.rglob("*.py")) if not path.name.endswith(GENERATED)]
    assert len(found) > 300
    return found


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_module_is_long() -> None:
    lengths = {name(path): len(path.read_text().splitlines()) for path in modules()}
    long = {path: lines for path, lines in lengths.items() if lines > LONGEST_MODULE_LINES}
    assert not long, f"{long}: over {LONGEST_MODULE_LINES} lines; split by noun, and give each module its own docstring"


def test_every_module_has_a_docstring() -> None:
    silent = [name(path) for path in modules() if not path.read_text().startswith(('"""', 'r"""'))]
    assert not silent, f"{silent}: no docstring; begin with a line that says what the module, or its folder, is"


def test_a_small_module_belongs_into_its_only_importer() -> None:
    importers: defaultdict[str, set[Path]] = defaultdict(set)
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for imported in (node.module, *(f"{node.module}.{each.name}" for each in node.names)):
                    importers[imported].add(path)
    small = [
        name(path)
        for path in modules()
        if path.name != "__init__.py" and len(path.read_text().splitlines()) < SMALL_MODULE_LINES
        if len(importers[".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("daemon.")]) == 1
    ]
    assert len(small) <= MOST_SMALL_MODULES, f"{small}: under {SMALL_MODULE_LINES} lines and imported once; merge some"
