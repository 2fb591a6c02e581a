"""docs/python.md: its examples run, and its tables are the public names of the modules."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

import neurontools
from neurontools.client import connect
from neurontools.client.recording import RecordingWriter
from tests.harness.running_daemon import RunningDaemon
from tests.harness.waiting import HANG_SECONDS, run_to_end, wait_until

PAGE = Path(__file__).parents[1] / "docs/python.md"
TEXT = PAGE.read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (neurontools\.\w+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
EXAMPLES = [
    pytest.param(TEXT.count("\n", 0, found.start(1)), found[1], id=f"line {TEXT.count(chr(10), 0, found.start(1)) + 1}")
    for found in re.finditer(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
]
SHOWN_OF_THIS_MOMENT = re.compile(r"(?<=Snapshot )\d+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|(?<=owner_pid=)\d+|0\.\d+")
LOADED = """
import json, sys
sys.modules.update(dict.fromkeys(["torch", "grpc", "textual"]))  # their import fails
import threading
for name in sys.argv[1:]:
    __import__(name)
print(json.dumps(threading.active_count()))
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    """A daemon with a load on four of its cores."""
    flags = ("--simulate", "trn1.32xlarge", "--interval", "0.05", "--load", "steady", "--load-neuroncores", "4")
    with tempfile.TemporaryDirectory(prefix="nd-") as directory:
        running = RunningDaemon(Path(directory) / "n.sock", flags, {})
        wait_until(lambda: running.snapshot().cores[0].utilization_ratio is not None)
        yield running
        running.stop()


@pytest.fixture
def place(daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader tries the examples: his daemon is found, and his recording lies here."""
    monkeypatch.setenv("NEURONTOOLS_SOCKET", daemon.socket)
    monkeypatch.chdir(tmp_path)
    writer = RecordingWriter("run.rec")
    with connect(timeout_seconds=HANG_SECONDS) as asked:
        for message in islice(asked.watch_messages(), 3):
            writer.write(message)
    writer.close()
    return tmp_path


@pytest.mark.parametrize(("line", "code"), EXAMPLES)
def test_every_example_runs(line: int, code: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile("\n" * line + code, str(PAGE), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr()
    assert "print(" not in code or printed.out or "finding" in code
    assert printed.err == ""


class NumbersOfThisMoment(doctest.OutputChecker):
    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        want, got = (SHOWN_OF_THIS_MOMENT.sub("N", text) for text in (want, got))
        return super().check_output(want, got, optionflags)


def test_a_notebook_shows_what_the_page_shows(place: Path) -> None:
    (session,) = re.findall(r"^```pycon\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    test = doctest.DocTestParser().get_doctest(session, {}, PAGE.name, str(PAGE), 0)
    assert len(test.examples) >= 4
    said: list[str] = []
    doctest.DocTestRunner(NumbersOfThisMoment()).run(test, out=said.append)
    assert said == []


def named_on_the_page(section: str) -> set[str]:
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def exported(module: ModuleType) -> set[str]:
    """What `import *` would take, and for a package what it takes from its modules."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        assert len(set(listed)) == len(listed)
        return set(listed)
    assert module.__file__ is not None
    assert module.__file__.endswith("__init__.py"), "a module says in __all__ what it exports"
    found = vars(module).items()
    return {name for name, value in found if not name.startswith("_") and not isinstance(value, ModuleType)}


def test_the_page_names_what_a_module_exports_and_nothing_else() -> None:
    for name, section in SECTIONS.items():
        module = importlib.import_module(name)
        assert named_on_the_page(section) == exported(module)
        assert all(hasattr(module, each) for each in exported(module))


def test_the_page_has_the_public_modules() -> None:
    expected = {"client", "estimate", "free_cores", "health", "model", "rows", "runtime", "testing"}
    assert set(SECTIONS) == {f"neurontools.{name}" for name in expected}


def test_imports_are_light() -> None:
    done = run_to_end([sys.executable, "-c", LOADED, *SECTIONS], cwd=PAGE.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == 1


def test_the_package_tells_its_version() -> None:
    from neurontools.util.version import __version__

    assert neurontools.__version__ == __version__
    with pytest.raises(AttributeError, match="module 'neurontools' has no attribute 'nothing'"):
        _ = neurontools.nothing  # type: ignore[attr-defined]


def test_the_page_is_found() -> None:
    root = PAGE.parents[1]
    assert "(docs/python.md)" in (root / "README.md").read_text("utf-8")
    assert "docs/python.md" in (root / "man/neurontools.7").read_text("utf-8")
    for target in re.findall(r"\]\(([\w./]+)\)", TEXT):
        assert (PAGE.parent / target).exists(), target
