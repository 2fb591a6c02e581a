"""The compile cache of one process: what it remembers, what it says, and what it does not believe."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from neurontools.runtime.programs import compiler
from neurontools.runtime.programs.compile_cache import CompileCache
from neurontools.runtime.programs.compiled_graph import CompiledGraph
from neurontools.runtime.programs.compiler_flags import CompilerFlags, parse

FLAGS = CompilerFlags()
RETRY = CompilerFlags(retry_failed_compilation=True)
OFF = CompilerFlags(no_cache=True)


@pytest.fixture
def cache(tmp_path: Path) -> CompileCache:
    return CompileCache({"NEURON_COMPILE_CACHE_URL": str(tmp_path / "cache")})


@pytest.fixture
def model(xla: Any) -> CompiledGraph:
    value = torch.ones(2, 3).to("xla")
    kept = value + 1
    graph = xla.cores[0].graph
    made = compiler.compile_graph(graph, bytes([buffer.is_alive for buffer in graph.buffers]), "9", "d41d8cd9")
    assert kept.shape == (2, 3)
    return made


def entry(cache: CompileCache, graph_hash: str = "9", flags: CompilerFlags = FLAGS) -> Path:
    directory = cache.directory(flags)
    assert directory is not None
    return directory / f"MODULE_{graph_hash}+{flags.hash_text}"


def test_a_failed_compilation_is_remembered_and_told(cache: CompileCache, capsys: pytest.CaptureFixture[str]) -> None:
    flags = parse("--optlevel=1")
    assert cache.failure("9", flags) is None, "it was not tried"
    cache.store_failure("9", flags, "the graph", " it is too large\n")
    assert cache.failure("9", flags) == "it is too large"
    assert cache.failure("9", FLAGS) is None, "with other flags it was not tried"
    where = entry(cache, flags=flags)
    assert capsys.readouterr().err == (
        f"ERROR ||NCC_WRAPPER||: Got a cached failed neff at {where / 'model.neff'}. Will skip compilation, please set "
        "--retry_failed_compilation for recompilation.\n"
    )
    assert {path.name for path in where.iterdir()} == {"model.hlo.pb", "compile_flags.json", "model.log"}
    assert (where / "model.hlo.pb").read_text() == "the graph"
    assert json.loads((where / "compile_flags.json").read_text()) == list(flags.passed_on)
    assert {path.stat().st_mode & 0o777 for path in where.iterdir()} == {0o644}


@pytest.mark.parametrize(
    ("reason", "told"), [("", "no reason is known"), (" \n", "no reason is known"), ("x" * 2001, "x" * 2000)]
)
def test_a_reason_is_there_and_of_a_bounded_length(cache: CompileCache, reason: str, told: str) -> None:
    cache.store_failure("9", FLAGS, "the graph", reason)
    assert cache.failure("9", FLAGS) == told


def test_a_reason_in_another_encoding_is_a_reason(cache: CompileCache) -> None:
    cache.store_failure("9", FLAGS, "the graph", "")
    (entry(cache) / "model.log").write_bytes(b"too \xff large")
    assert cache.failure("9", FLAGS) == "too \ufffd large"


def test_a_failed_compilation_is_tried_again_when_that_is_asked_for(cache: CompileCache) -> None:
    cache.store_failure("9", FLAGS, "the graph", "too large")
    assert cache.failure("9", RETRY) is None
    assert cache.failure("9", FLAGS) is None, "the failure is forgotten"


def test_a_compilation_that_went_well_later_counts(cache: CompileCache, model: CompiledGraph) -> None:
    cache.store_failure("9", FLAGS, "the graph", "too large")
    cache.store(model, "the graph", FLAGS)
    assert cache.failure("9", FLAGS) is None
    assert cache.find("9", FLAGS) is not None


def test_the_failure_that_another_user_wrote_is_not_believed(cache: CompileCache) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    cache.store_failure("9", FLAGS, "the graph", "too large")
    os.chown(entry(cache) / "model.log", 65534, 65534)
    assert cache.failure("9", FLAGS) is None


def test_without_a_cache_nothing_is_kept_and_nothing_found(
    cache: CompileCache, model: CompiledGraph, tmp_path: Path
) -> None:
    with cache.locked("9", OFF):
        cache.store(model, "the graph", OFF)
        cache.store_failure("9", OFF, "the graph", "too large")
    assert (cache.find("9", OFF), cache.failure("9", OFF)) == (None, None)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("level", ["info", "DEBUG", "Trace"])
def test_what_it_does_is_told_to_who_asks(
    level: str, tmp_path: Path, model: CompiledGraph, capsys: pytest.CaptureFixture[str]
) -> None:
    for given, count in ((level, 3), ("warning", 0), ("", 0)):
        cache = CompileCache({"NEURON_COMPILE_CACHE_URL": str(tmp_path / given), "NEURON_RT_LOG_LEVEL": given})
        cache.store(model, "the graph", FLAGS)
        assert cache.find("9", FLAGS) is not None
        assert len(capsys.readouterr().err.splitlines()) == count


def test_a_place_that_cannot_be_reached_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    cache = CompileCache({"NEURON_COMPILE_CACHE_URL": "s3://bucket/x"})
    assert [cache.directory(FLAGS), cache.directory(FLAGS)] == [None, None]
    assert capsys.readouterr().err == (
        "ERROR ||NCC_WRAPPER||: the compile cache s3://bucket/x is not reachable from here; "
        "set NEURON_COMPILE_CACHE_URL to a directory\n"
    )


def test_a_place_may_be_given_as_a_url(tmp_path: Path, model: CompiledGraph) -> None:
    by_url = CompileCache({"NEURON_COMPILE_CACHE_URL": f"file://{tmp_path}"})
    by_path = CompileCache({"NEURON_COMPILE_CACHE_URL": str(tmp_path)})
    assert by_url.directory(FLAGS) == by_path.directory(FLAGS)
    by_url.store(model, "the graph", FLAGS)
    assert by_path.find("9", FLAGS) is not None


def test_hits_and_rebuilds_are_counted(cache: CompileCache, model: CompiledGraph) -> None:
    cache.store(model, "the graph", FLAGS)
    assert cache.find("other", FLAGS) is None
    for _ in range(2):
        assert cache.find("9", FLAGS) is not None
    (entry(cache) / "model.neff").write_bytes(b"garbage")
    for _ in range(2):  # the second time it is no entry any more
        assert cache.find("9", FLAGS) is None
    assert (cache.hits_total, cache.rebuilt_total) == (2, 1)


@pytest.mark.parametrize("graph_hash", ["8", "9"])
def test_the_model_of_another_graph_is_not_used(
    cache: CompileCache, model: CompiledGraph, graph_hash: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.store(model, "the graph", FLAGS)
    flags = parse("--optlevel=1") if graph_hash == "9" else FLAGS
    shutil.copytree(entry(cache), entry(cache, graph_hash, flags))
    assert cache.find(graph_hash, flags) is None
    assert "is damaged (it is another graph's); compiling it again" in capsys.readouterr().err
    assert cache.find("9", FLAGS) is not None


def test_a_digest_may_have_a_line_end_and_no_more(cache: CompileCache, model: CompiledGraph) -> None:
    cache.store(model, "the graph", FLAGS)
    done = entry(cache) / "model.done"
    digest = done.read_bytes()
    done.write_bytes(digest.ljust(256))
    assert cache.find("9", FLAGS) is not None
    done.write_bytes(digest.ljust(257))
    assert cache.find("9", FLAGS) is None


def test_what_could_not_be_written_leaves_nothing_behind(
    cache: CompileCache, model: CompiledGraph, capsys: pytest.CaptureFixture[str]
) -> None:
    (entry(cache) / "model.neff").mkdir(parents=True)
    cache.store(model, "the graph", FLAGS)
    assert "can't be written" in capsys.readouterr().err
    assert {path.name for path in entry(cache).iterdir()} == {"model.hlo.pb", "compile_flags.json", "model.neff"}


def test_who_waits_for_another_says_so_and_not_for_ever(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = CompileCache({"NEURON_COMPILE_CACHE_URL": str(tmp_path / "cache"), "NEURON_RT_LOG_LEVEL": "info"})
    cache.longest_wait_seconds = 0.3
    with cache.locked("9", FLAGS):
        assert (entry(cache) / "model.lock").exists(), "the entry is made for it"
    with (entry(cache) / "model.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with cache.locked("9", FLAGS):
            pass
    assert (
        f"Another process must be compiling {entry(cache)}/model.neff, been waiting for: 0.0 minutes"
        in capsys.readouterr().err
    )
