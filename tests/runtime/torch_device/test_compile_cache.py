"""The compile cache: what it keeps and logs, what it does not trust, several processes, and disks that are full."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest
import torch

from neurontools.runtime.programs import compiler
from neurontools.runtime.programs.compile_cache import CompileCache, hold_entry_lock
from neurontools.runtime.programs.compiled_graph import CompiledGraph, InvalidCompiledGraph
from neurontools.runtime.programs.compiler import CompilerFlags, parse_compiler_flags
from neurontools.util.directory import Directory
from tests.harness.hostile_user import HOSTILE, needs_two_users, public_directory, successful_attacks
from tests.harness.waiting import HANG_SECONDS, wait_until

Start = Callable[..., "subprocess.Popen[str]"]
FLAGS = CompilerFlags()
OFF = CompilerFlags(no_cache=True)
LEVEL_1 = parse_compiler_flags("--optlevel=1")


def cache_in(place: object, level: str = "") -> CompileCache:
    return CompileCache({"NEURON_COMPILE_CACHE_URL": str(place), "NEURON_RT_LOG_LEVEL": level})


@pytest.fixture
def cache(tmp_path: Path) -> CompileCache:
    return cache_in(tmp_path / "cache")


@pytest.fixture
def model(xla: Any) -> CompiledGraph:
    value = torch.ones(2, 3).to("xla")
    kept = (torch.tensor(2.0) * value).softmax(1)[0] + value[1] * 3
    graph = xla.cores[0].graph
    made = compiler.compile_graph(graph, bytes([buffer.is_alive for buffer in graph.buffers]), "9", "d41d8cd9")
    assert kept.shape == (3,)
    return made


def entry(cache: CompileCache, graph_hash: str = "9", flags: CompilerFlags = FLAGS) -> Path:
    directory = cache.directory(flags)
    assert directory is not None
    return directory / f"MODULE_{graph_hash}+{flags.hash_text}"


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format": "other"}', b"\xff\xfe"])
def test_other_bytes_are_no_model(data: bytes) -> None:
    with pytest.raises((InvalidCompiledGraph, UnicodeDecodeError)):
        CompiledGraph.from_json(data)


@pytest.mark.parametrize("level", ["INFO", "debug", "Trace", "warning", ""])
def test_layout_and_log_lines(
    tmp_path: Path, model: CompiledGraph, level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = cache_in(tmp_path / "cache", level)
    assert cache.find("9", FLAGS) is None
    cache.store(model, "the graph", FLAGS)
    files = {"model.hlo.pb", "model.neff", "model.done", "compile_flags.json"}
    assert {path.name for path in entry(cache).iterdir()} == files
    found = cache.find("9", FLAGS)
    assert found is not None
    assert found.to_json() == model.to_json()
    lines = (
        f"INFO ||NCC_WRAPPER||: Compile cache path: {entry(cache).parent.parent}\n"
        "INFO ||NCC_WRAPPER||: Compiler status PASS\n"
        f"INFO ||NCC_WRAPPER||: Using a cached neff at {entry(cache)}/model.neff. "
        "Exiting with a successfully compiled graph.\n"
    )
    assert capsys.readouterr().err == (lines if level not in ("warning", "") else "")


def test_flags_and_variables_choose_the_directory(
    tmp_path: Path, model: CompiledGraph, capsys: pytest.CaptureFixture[str]
) -> None:
    remote = cache_in("s3://bucket/x")
    assert [remote.directory(FLAGS), remote.directory(FLAGS), remote.directory(OFF)] == [None] * 3
    assert capsys.readouterr().err == (
        "ERROR ||NCC_WRAPPER||: the compile cache s3://bucket/x is not reachable from here; "
        "set NEURON_COMPILE_CACHE_URL to a directory\n"
    )
    assert str(remote.directory(parse_compiler_flags(f"--cache_dir={tmp_path}"))).startswith(str(tmp_path))
    default = CompileCache({}).directory(FLAGS)
    assert default is not None
    assert default.parent == Path(f"/var/tmp/neuron-compile-cache-{os.geteuid()}")
    by_url, by_path = cache_in(f"file://{tmp_path}"), cache_in(tmp_path)
    assert by_url.directory(FLAGS) == by_path.directory(FLAGS)
    by_url.store(model, "the graph", FLAGS)
    assert by_path.find("9", FLAGS) is not None


def test_a_failed_compilation_is_remembered_and_told_until_one_goes_well(
    cache: CompileCache, model: CompiledGraph, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cache.failure("9", LEVEL_1) is None, "it was not tried"
    cache.store_failure("9", LEVEL_1, "the graph", " it is too large\n")
    assert cache.failure("9", LEVEL_1) == "it is too large"
    assert cache.failure("9", FLAGS) is None, "with other flags it was not tried"
    where = entry(cache, flags=LEVEL_1)
    assert capsys.readouterr().err == (
        f"ERROR ||NCC_WRAPPER||: Got a cached failed neff at {where / 'model.neff'}. Will skip compilation, please set "
        "--retry_failed_compilation for recompilation.\n"
    )
    assert {path.name for path in where.iterdir()} == {"model.hlo.pb", "compile_flags.json", "model.log"}
    assert (where / "model.hlo.pb").read_text() == "the graph"
    assert json.loads((where / "compile_flags.json").read_text()) == list(LEVEL_1.passed_on)
    assert {path.stat().st_mode & 0o777 for path in where.iterdir()} == {0o644}
    cache.store(model, "the graph", LEVEL_1)
    assert cache.failure("9", LEVEL_1) is None


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (b"", "no reason is known"),
        (b" \n", "no reason is known"),
        (b"x" * 2001, "x" * 2000),
        (b"too \xff large", "too \ufffd large"),
    ],
)
def test_a_reason_is_there_and_of_a_bounded_length(cache: CompileCache, reason: bytes, told: str) -> None:
    cache.store_failure("9", FLAGS, "the graph", reason.decode(errors="replace"))
    assert cache.failure("9", FLAGS) == told
    (entry(cache) / "model.log").write_bytes(reason)
    assert cache.failure("9", FLAGS) == told


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_a_damaged_entry_is_built_anew(
    cache: CompileCache, model: CompiledGraph, damage: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.store(model, "the graph", FLAGS)
    assert cache.find("other", FLAGS) is None
    for _ in range(2):
        assert cache.find("9", FLAGS) is not None
    neff = entry(cache) / "model.neff"
    neff.write_bytes(neff.read_bytes()[:-10] if damage is None else damage)
    for _ in range(2):  # the second time it is no entry any more
        assert cache.find("9", FLAGS) is None
    assert (cache.hits_total, cache.rebuilt_total) == (2, 1)
    assert "is damaged (its digest does not match); compiling it again" in capsys.readouterr().err
    cache.store(model, "the graph", FLAGS)
    assert cache.find("9", FLAGS) is not None


@pytest.mark.parametrize(("graph_hash", "flags"), [("8", FLAGS), ("9", LEVEL_1)])
def test_the_model_of_another_graph_is_not_used(
    cache: CompileCache, model: CompiledGraph, graph_hash: str, flags: CompilerFlags, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.store(model, "the graph", FLAGS)
    shutil.copytree(entry(cache), entry(cache, graph_hash, flags))
    assert cache.find(graph_hash, flags) is None
    assert "is damaged (it belongs to another graph); compiling it again" in capsys.readouterr().err
    assert cache.find("9", FLAGS) is not None


def test_a_digest_may_have_a_line_end_and_no_more(cache: CompileCache, model: CompiledGraph) -> None:
    cache.store(model, "the graph", FLAGS)
    done = entry(cache) / "model.done"
    digest = done.read_bytes()
    done.write_bytes(digest.ljust(256))
    assert cache.find("9", FLAGS) is not None
    done.write_bytes(digest.ljust(257))
    assert cache.find("9", FLAGS) is None


def test_what_could_not_be_written_leaves_nothing_behind_and_is_told(
    cache: CompileCache, model: CompiledGraph, capsys: pytest.CaptureFixture[str]
) -> None:
    (entry(cache) / "model.neff").mkdir(parents=True)
    cache.store(model, "the graph", FLAGS)
    assert "can't be written" in capsys.readouterr().err
    assert {path.name for path in entry(cache).iterdir()} == {"model.hlo.pb", "compile_flags.json", "model.neff"}


def test_a_process_that_waits_for_another_says_so_and_gives_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = cache_in(tmp_path / "cache", "info")
    cache.longest_wait_seconds = 0.3
    with cache.locked("9", FLAGS):
        assert (entry(cache) / "model.lock").exists(), "the entry is made for it"
    with (entry(cache) / "model.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with cache.locked("9", FLAGS):
            pass
    line = f"Another process must be compiling {entry(cache)}/model.neff, been waiting for: 0.0 minutes"
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    "is_link", [True, pytest.param(False, marks=needs_two_users)], ids=["a link", "another user's"]
)
@pytest.mark.parametrize("level", [0, 1, 2], ids=["cache", "version", "module"])
def test_a_directory_that_is_a_link_or_another_users_is_not_used(
    model: CompiledGraph, level: int, is_link: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = cache_in(tmp_path / "cache")
    directory = (entry(cache).parent.parent, entry(cache).parent, entry(cache))[level]
    directory.mkdir(parents=True)
    if is_link:
        directory.rmdir()
        (tmp_path / "elsewhere").mkdir()
        directory.symlink_to(tmp_path / "elsewhere")
        reason = "is a symbolic link;"
    else:
        os.chown(directory, HOSTILE, HOSTILE)
        reason = f"belongs to user {HOSTILE}"
    before = list(directory.iterdir())
    with cache.locked("9", FLAGS):
        cache.store(model, "the graph", FLAGS)
    cache.store_failure("9", FLAGS, "the graph", "a reason")
    assert (cache.find("9", FLAGS), cache.failure("9", FLAGS)) == (None, None)
    assert list(directory.iterdir()) == before
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"WARNING ||NCC_WRAPPER||: the compile cache is not used: {directory} {reason}")


@needs_two_users
def test_another_user_can_neither_change_nor_place_models(model: CompiledGraph) -> None:
    with public_directory() as place:
        cache = cache_in(place / "cache")
        cache.store(model, "the graph", FLAGS)
        cache.store_failure("9", LEVEL_1, "the graph", "too large")
        files = entry(cache) / "model.neff", entry(cache, flags=LEVEL_1) / "model.log"
        assert [successful_attacks(path) for path in files] == [[], []]
        assert cache.find("9", FLAGS) is not None
        assert cache.failure("9", LEVEL_1) is not None
        for path in files:
            os.chown(path, HOSTILE, HOSTILE)
        assert (cache.find("9", FLAGS), cache.failure("9", LEVEL_1)) == (None, None)


SCRIPT = """
import torch, torch_xla, torch_xla.core.xla_model as xm, torch_xla.debug.metrics as met
x = torch.ones(3).to(xm.xla_device())
y = x * 2 + 1
x.add_(5)
xm.mark_step()
print(y.tolist(), x.tolist(), met.counter_value("UncachedCompile") or 0, met.counter_value("ExecuteComputation") or 0)
"""
COMPILED, FOUND = (f"[3.0, 3.0, 3.0] [6.0, 6.0, 6.0] {count} 1\n" for count in (1, 0))
WAITING = "INFO ||NCC_WRAPPER||: Another process must be compiling"


@pytest.fixture
def start_rank(start_script: Start) -> Start:
    """Starts a process that runs the script with a cache."""
    return lambda cache: start_script(SCRIPT, NEURON_COMPILE_CACHE_URL=str(cache), NEURON_RT_LOG_LEVEL="INFO")


def end(rank: subprocess.Popen[str]) -> tuple[str, str]:
    """What it printed (results, how many graphs it compiled, how many executions there were), and its errors."""
    output, errors = rank.communicate(timeout=HANG_SECONDS)
    assert rank.returncode == 0, errors
    return output, errors


def test_a_graph_is_extracted_compiled_once_and_its_failure_remembered(run_script: Any, tmp_path: Path) -> None:
    cache = {"NEURON_COMPILE_CACHE_URL": str(tmp_path / "cache")}
    extracted = run_script(SCRIPT, NEURON_EXTRACT_GRAPHS_ONLY="1", **cache)
    assert extracted.stdout == "[0.0, 0.0, 0.0] [1.0, 1.0, 1.0] 1 0\n"
    assert run_script(SCRIPT, **cache).stdout == FOUND
    (entry,) = tmp_path.glob("cache/*/MODULE_*")
    (entry / "model.done").unlink()
    (entry / "model.neff").unlink()
    (entry / "model.log").write_text("the compiler ran out of memory")
    errors = run_script(SCRIPT, exit_code=1, **cache).stderr
    assert f"Got a cached failed neff at {entry}/model.neff. Will skip compilation, please set" in errors
    assert "could not be compiled before (the compiler ran out of memory)" in errors
    assert run_script(SCRIPT, NEURON_CC_FLAGS="--retry_failed_compilation", **cache).stdout == COMPILED
    assert not (entry / "model.log").exists()


@pytest.mark.slow
def test_a_lock_that_was_left_means_nothing_and_one_that_is_held_is_waited_for(tmp_path: Path, start_rank: Any) -> None:
    """The kernel frees the lock of a rank however that ends, so this process stands for one that compiles."""
    end(start_rank(tmp_path / "first"))
    (done,) = (tmp_path / "first").rglob("model.done")
    compiled = done.parent
    entry = tmp_path / "shared" / compiled.parent.name / compiled.name
    entry.mkdir(parents=True)
    (entry / "model.lock").write_text("4711")
    output, errors = end(start_rank(tmp_path / "shared"))
    assert output == COMPILED
    assert WAITING not in errors

    for is_compiled in (True, False):
        for path in entry.iterdir():
            path.unlink()
        with (entry / "model.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            rank = start_rank(tmp_path / "shared")
            assert any(line.startswith(f"{WAITING} {entry}/model.neff, been waiting for: ") for line in rank.stderr)
            for name in ("model.hlo.pb", "compile_flags.json", "model.neff", "model.done") if is_compiled else ():
                shutil.copy(compiled / name, entry)
        output, errors = end(rank)
        assert output == (FOUND if is_compiled else COMPILED)
        found = f"Using a cached neff at {entry}/model.neff. Exiting with a successfully compiled graph."
        assert (found in errors, "Compiler status PASS" in errors) == (is_compiled, not is_compiled)
        assert (entry / "model.done").exists()


@pytest.mark.slow
def test_ranks_that_start_together_compile_each_graph_once(tmp_path: Path, start_rank: Any) -> None:
    ranks = [start_rank(tmp_path / "shared") for _ in range(3)]
    assert sorted(end(rank)[0] for rank in ranks) == [FOUND, FOUND, COMPILED]


def is_free(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_a_child_that_is_forked_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "model.lock"
    readable, writable = os.pipe()
    with Directory.open(tmp_path) as directory, hold_entry_lock(directory, path.name, print) as is_held:
        assert is_held
        child = os.fork()
        if child == 0:
            os.read(readable, 1)
            os._exit(0)
    try:
        with path.open() as file:
            wait_until(lambda: is_free(file))  # the child has yet to close its copy
        os.kill(child, 0)
    finally:
        os.write(writable, b"x")
        assert os.waitpid(child, 0)[1] == 0
        os.close(readable)
        os.close(writable)


TRAINING = """
import json, os, resource, sys, torch, torch_xla, torch_xla.core.xla_model as xm
torch.manual_seed(0)
device = xm.xla_device()
model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Dropout(0.5)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for width in (2, 3, 4):
    if width == 4 and "room" in sys.argv: resource.setrlimit(resource.RLIMIT_FSIZE, [resource.RLIM_INFINITY] * 2)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(width, 8).to(device)).sum().backward(); optimizer.step(); xm.mark_step()
written = sum("model.done" in files for _, _, files in os.walk("disk"))
open("result", "w").write(json.dumps([model[0].weight.sum().item(), written]))
"""
SMALL_FILES_ONLY = """
import os, resource, sys
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
"""
WITH_A_FULL_LOG = 'import os; os.dup2(os.open("/dev/full", os.O_WRONLY), 2)'
WITH_A_CLOSED_LOG = "import os, sys; os.close(2); sys.stderr = sys.__stderr__ = None"  # as Python starts then
RUN = """
import runpy, sys
sys.argv[:] = ["-m", "script.py", *sys.argv[1:]]
runpy.run_module("neurontools.runtime", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def train(run_python: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Runs the training; gives the process, and the sum of weights and the entries on the disk that it ended with."""
    (tmp_path / "script.py").write_text(TRAINING)
    (tmp_path / "disk").mkdir()

    def run(cache: object, first: str = "", *arguments: object, **environment: str) -> Any:
        done = run_python("-c", first + RUN, *map(str, arguments), NEURON_COMPILE_CACHE_URL=str(cache), **environment)
        result = tmp_path / "result"
        told = json.loads(result.read_text()) if result.exists() else None
        result.unlink(missing_ok=True)
        return done, told

    return run


@pytest.mark.slow
def test_files_that_can_not_grow_cost_the_cache_for_as_long_and_not_the_training(train: Any, tmp_path: Path) -> None:
    _, expected = train(tmp_path / "roomy")
    for has_room_again in (False, True):
        done, (weight, written) = train(tmp_path / "disk" / "cache", SMALL_FILES_ONLY, *["room"] * has_room_again)
        assert (done.returncode, weight) == (0, expected[0]), done.stderr
        assert (written >= 1) == has_room_again
        assert done.stderr.count("can't be written (File too large); training goes on") == 1


@pytest.mark.parametrize("beginning", [WITH_A_FULL_LOG, WITH_A_CLOSED_LOG], ids=["full", "closed"])
def test_log_lines_that_cannot_be_written_are_lost_and_nothing_else(train: Any, tmp_path: Path, beginning: str) -> None:
    # also the line that says that nothing is monitored, and the one of the cache that can't be written
    done, told = train(f"/dev/null/{tmp_path.name}", beginning, NEURON_RT_LOG_LEVEL="INFO")
    assert done.returncode == 0
    assert told is not None
