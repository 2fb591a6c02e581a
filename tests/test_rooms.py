"""How large a module and a folder of the product may become; `make imports` checks which way imports go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOUSES = (ROOT / "neurontools", ROOT / "daemon" / "neurond")
LONGEST_MODULE_LINES = 600
MOST_MODULES = 21
GENERATED = ("_pb2.py", "_pb2_grpc.py")

# Folders of a single module, and why each is one.
LONELY = {
    "neurontools/util/files": "private, and what lies loose at the top is public or ground",
    "neurontools/runtime/torch_xla_modules/torch_xla/amp": "scripts import these names",
    "neurontools/runtime/torch_xla_modules/torch_xla/_internal": "frameworks import these names",
    "neurontools/runtime/torch_xla_modules/torch_neuronx/xla_impl": "scripts import these names",
    "neurontools/runtime/torch_xla_modules/torch_xla/test": "scripts import these names",
}


def modules() -> list[Path]:
    """All modules of the library and the daemon that somebody wrote."""
    found = [path for house in HOUSES for path in sorted(house.rglob("*.py")) if not path.name.endswith(GENERATED)]
    assert len(found) > 300
    return found


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


FOLDERS = sorted({path.parent for path in modules()})


def test_no_module_is_long() -> None:
    lengths = {name(path): len(path.read_text().splitlines()) for path in modules()}
    long = {path: lines for path, lines in lengths.items() if lines > LONGEST_MODULE_LINES}
    assert not long, f"{long}: over {LONGEST_MODULE_LINES} lines; split by noun, and give each module its own docstring"


def test_every_module_has_a_docstring() -> None:
    silent = [name(path) for path in modules() if not path.read_text().startswith(('"""', 'r"""'))]
    assert not silent, f"{silent}: no docstring; begin with a line that says what the module, or its folder, is"


def test_every_folder_is_a_room() -> None:
    problems = [problem for folder in FOLDERS for problem in problems_of(folder)]
    assert not problems, "\n".join(problems)


def problems_of(folder: Path) -> Iterator[str]:
    written = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    below = [path for path in folder.iterdir() if path in FOLDERS]
    if not (folder / "__init__.py").exists():
        yield f"{name(folder)} is no package; add an __init__.py whose docstring says what belongs there"
    if len(written) > MOST_MODULES:
        yield f"{name(folder)} has {len(written)} modules, over {MOST_MODULES}; move some into a folder of their own"
    if len(written) + len(below) < 2 and name(folder) not in LONELY:
        yield f"{name(folder)} has a single module; move it up beside the folder, or give the reason in LONELY"
    if len(written) + len(below) >= 2 and name(folder) in LONELY:
        yield f"{name(folder)} has several modules by now; take it out of LONELY"


def test_the_lonely_folders_are_there() -> None:
    gone = [path for path in LONELY if ROOT / path not in FOLDERS]
    assert not gone, f"{gone}: no such folders; take them out of LONELY"
