"""How large a module and a folder of the product may become; `make imports` checks which way imports go."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
HOUSES = (ROOT / "neurontools", ROOT / "daemon" / "neurond")
LONGEST_MODULE_LINES = 600
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
