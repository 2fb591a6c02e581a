"""Records which tests reach which blocks of the product, on an instrumented copy of the tree.

In the copy, each block of each function first stores one byte into a memory-mapped file, which all processes share.
The recorder clears the bytes before each test and reads them after it. So daemons and other children count for the
running test.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path

import pytest
from mutant import blocks_of

_PROBE_MODULE = "neurontools/block_probe.py"
_PROBE_SOURCE = """
import mmap as _mmap
import os as _os
try:
    _descriptor = _os.open({path!r}, _os.O_RDWR)
    REACHED = _mmap.mmap(_descriptor, {size})
    _os.close(_descriptor)
except OSError:
    REACHED = bytearray({size})
"""
_NAME = "reached_blocks_"
_LONG_CPU_SECONDS = 0.5
_IMPORT = """
try:
    from neurontools.block_probe import REACHED as {name}
except ImportError:  # the module runs as a script, without the package
    try:
        with open({probe!r}) as _file:
            exec(_file.read(), _probe := {{}})
        {name} = _probe["REACHED"]
    except OSError:
        {name} = bytearray({size})
"""


def digest(source: str) -> str:
    """Returns a short digest of a source text."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class TestReach:
    """Result of one test. `blocks` has a bit for each reached block. `cpu_seconds` includes child processes."""

    name: str
    passed: bool
    cpu_seconds: float
    blocks: int

    @property
    def file(self) -> str:
        """Returns the file of the test."""
        return self.name.partition("::")[0]


@dataclass(frozen=True, slots=True)
class Reach:
    """The recorded tests. `modules` has the number of the first block, the block count and the digest of each module.

    `files` has the digests of the recorded test files.
    """

    modules: Mapping[str, tuple[int, int, str]]
    files: Mapping[str, str]
    tests: tuple[TestReach, ...]
    importers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """For each module: the modules that import it, which may use its constants."""
    imported: int = 0
    """A bit for each block that runs when the tests are collected."""
    complete: bool = True
    """False if the recording was stopped before its end."""

    @classmethod
    def of_modules(cls, sources: Mapping[str, str]) -> Reach:
        """Numbers the blocks of these modules."""
        modules: dict[str, tuple[int, int, str]] = {}
        first = 0
        for path, source in sources.items():
            count = len(blocks_of(ast.parse(source)))
            modules[path] = (first, count, digest(source))
            first += count
        return cls(modules, {}, (), _importers(sources))

    @classmethod
    def load(cls, path: Path, sources: Mapping[str, str]) -> Reach:
        """Reads a recording. If modules have changed since, keeps the tests that reach none of them."""
        document = json.loads(path.read_text("utf-8"))
        now = cls.of_modules(sources)
        changed, moves = 0, []
        for name, (first, count, of) in document["modules"].items():
            mask = (1 << count) - 1
            if name in now.modules and now.modules[name][2] == of:
                moves.append((first, mask, now.modules[name][0]))
            else:
                changed |= mask << first
        rows = [_decoded(row) for row in document["tests"]]
        imported, complete = int(document["imported"], 16), document.get("complete", True)
        if changed or len(moves) != len(now.modules):
            rows = [replace(row, blocks=_moved(row.blocks, moves)) for row in rows if not row.blocks & changed]
            imported, complete = _moved(imported, moves), False
        return replace(now, files=document["files"], tests=tuple(rows), imported=imported, complete=complete)

    def save(self, path: Path) -> None:
        """Writes a recording."""
        rows = [_encoded(test) for test in self.tests]
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "modules": self.modules,
            "files": self.files,
            "tests": rows,
            "imported": f"{self.imported:x}",
            "complete": self.complete,
        }
        unfinished = path.with_name(f"{path.name}.part")
        unfinished.write_text(json.dumps(document), "utf-8")
        unfinished.replace(path)

    def of_files(self, files: Mapping[str, str]) -> Reach:
        """Returns the part of the recording whose test files still have these digests."""
        kept = {path: of for path, of in self.files.items() if files.get(path) == of}
        return replace(self, files=kept, tests=tuple(test for test in self.tests if test.file in kept))

    @property
    def block_count(self) -> int:
        """Returns the number of blocks in the tree."""
        return sum(count for _, count, _ in self.modules.values())

    def is_imported(self, path: str, block: int | None) -> bool:
        """Whether the block runs at imports, so that only a new import tries a change of it."""
        return block is None or bool(self.imported >> (self.modules[path][0] + block) & 1)

    def tests_of(self, path: str, block: int | None) -> list[TestReach]:
        """Returns the passing tests that reach a block, or any block of the module and its importers if it is None.

        The tests are in rounds with one case of every test function, because its cases are similar. Within a round, the
        tests are first of whose reached blocks the largest share is in the module, then in its importers. Long tests
        come after all rounds.
        """
        module_mask = self._mask(path)
        importers_mask = 0
        for name in self.importers[path] if block is None else ():
            importers_mask |= self._mask(name)
        mask = module_mask | importers_mask if block is None else 1 << (self.modules[path][0] + block)
        found = [test for test in self.tests if test.passed and test.blocks & mask]

        def share(test: TestReach, of: int) -> float:
            return (test.blocks & of).bit_count() / test.blocks.bit_count()

        rounds: Counter[str] = Counter()
        placed: list[tuple[bool, int, int, TestReach]] = []
        for test in sorted(found, key=lambda t: (-share(t, module_mask), -share(t, importers_mask), t.cpu_seconds)):
            function = test.name.partition("[")[0]
            placed.append((test.cpu_seconds > _LONG_CPU_SECONDS, rounds[function], len(placed), test))
            rounds[function] += 1
        return [test for *_, test in sorted(placed, key=itemgetter(0, 1, 2))]

    def _mask(self, path: str) -> int:
        first, count, _ = self.modules[path]
        return ((1 << count) - 1) << first


def _moved(blocks: int, moves: Collection[tuple[int, int, int]]) -> int:
    """Renumbers blocks. A move has the old first number, the mask and the new first number of a module."""
    moved = 0
    for first, mask, new_first in moves:
        moved |= (blocks >> first & mask) << new_first
    return moved


def _importers(sources: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {path: [] for path in sources}
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    place = ("daemon/" if name.startswith("neurond") else "") + name.replace(".", "/")
                    for imported in (f"{place}.py", f"{place}/__init__.py"):
                        if imported in found:
                            found[imported].append(path)
                            if path.endswith("__init__.py"):  # a package without functions: its tests use the modules
                                found[path].append(imported)
    return found


def instrument(tree: Path, reach: Reach) -> Path:
    """Inserts the probes into a copy of the tree. Returns the file that they write to."""
    record = tree.parent / "reached"
    record.write_bytes(bytes(reach.block_count))
    record.chmod(0o666)  # tests run processes of other users
    probe = _PROBE_SOURCE.format(path=str(record), size=reach.block_count)
    (tree / _PROBE_MODULE).write_text(probe, "utf-8")
    for path, (first, count, _) in reach.modules.items():
        if count:
            file = tree / path
            file.write_text(_with_probes(file.read_text("utf-8"), first, tree / _PROBE_MODULE), "utf-8")
    return record


def _with_probes(source: str, first: int, probe_file: Path) -> str:
    tree = ast.parse(source)
    last = first
    # TorchScript compiles neither the probe nor what it leaves out.
    unless = "if not torch.jit.is_scripting(): " if "torch.jit.script(" in source else ""
    for last, block in enumerate(blocks_of(tree), first):
        probe = ast.parse(f"{unless}{_NAME}[{last}] = 1").body[0]
        block.insert(1 if _is_text(block[0]) and len(block) > 1 else 0, probe)
    position = 0
    while position < len(tree.body) and (_is_text(tree.body[position]) or _is_future(tree.body[position])):
        position += 1
    tree.body[position:position] = ast.parse(_IMPORT.format(name=_NAME, probe=str(probe_file), size=last + 1)).body
    return ast.unparse(ast.fix_missing_locations(tree))


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def reached_blocks(record: Path) -> int:
    """Returns a bit for each byte that is set in the probes' file."""
    return int("".join("1" if byte else "0" for byte in reversed(record.read_bytes())), 2)


class ReachRecorder:
    """A pytest plugin that writes a row to `output` for each test in its `share` of the tests not named `recorded`."""

    def __init__(self, record: Path, output: Path, recorded: Collection[str], share: slice) -> None:
        self._record, self._output, self._recorded, self._share = record, output, recorded, share
        self._outcomes: dict[str, bool] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Deselects the recorded tests and those of other shares."""
        items[:] = [item for item in items if item.nodeid not in self._recorded][self._share]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Runs one test and writes its row."""
        before = os.times()
        self._clear()
        result = yield
        after = os.times()
        cpu_seconds = sum(after[:4]) - sum(before[:4])
        passed = self._outcomes.get(item.nodeid, False)
        test = TestReach(item.nodeid, passed, round(cpu_seconds, 3), reached_blocks(self._record))
        with self._output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_encoded(test)) + "\n")
        return result

    def _clear(self) -> None:
        with self._record.open("r+b") as file:
            file.write(bytes(self._record.stat().st_size))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Records whether all phases of the test passed."""
        self._outcomes[report.nodeid] = self._outcomes.get(report.nodeid, True) and report.outcome == "passed"


def read_rows(path: Path) -> list[TestReach]:
    """Reads the tests from a recorder's output, without a row that is still being written."""
    lines = path.read_text("utf-8").splitlines(keepends=True)
    return [_decoded(json.loads(line)) for line in lines if line.endswith("\n")]


def _encoded(test: TestReach) -> list[object]:
    size = (test.blocks.bit_length() + 7) // 8
    packed = base64.b64encode(zlib.compress(test.blocks.to_bytes(size, "little"))).decode()
    return [test.name, test.passed, test.cpu_seconds, packed]


def _decoded(row: tuple[str, bool, float, str]) -> TestReach:
    name, passed, cpu_seconds, packed = row
    return TestReach(name, passed, cpu_seconds, int.from_bytes(zlib.decompress(base64.b64decode(packed)), "little"))
