"""The compile cache where somebody else can write: what he tries, and that it gets him nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from neurontools.runtime.programs import compiler
from neurontools.runtime.programs.compile_cache import CompileCache
from neurontools.runtime.programs.compiled_graph import CompiledGraph
from neurontools.runtime.programs.compiler_flags import CompilerFlags
from tests.harness.hostile_user import HOSTILE, needs_two_users, public_directory, swapping_new_files_for_links

FLAGS = CompilerFlags()
MODULE = "MODULE_123+d41d8cd9"
TRIES, SWAPS = 50, 20


@pytest.fixture
def model(xla: Any) -> CompiledGraph:
    kept = torch.ones(2, 3).to("xla") + 1
    graph = xla.cores[0].graph
    made = compiler.compile_graph(graph, bytes([buffer.is_alive for buffer in graph.buffers]), "123", FLAGS.hash_text)
    assert kept.shape == (2, 3)
    return made


@pytest.fixture
def place() -> Iterator[Path]:
    with public_directory() as path:
        yield path


def cache_in(path: Path) -> CompileCache:
    return CompileCache({"NEURON_COMPILE_CACHE_URL": str(path)})


def given_away(*paths: Path) -> None:
    for path in paths:
        os.chown(path, HOSTILE, HOSTILE)


def try_all(cache: CompileCache, model: CompiledGraph) -> None:
    assert cache.find("123", FLAGS) is None
    assert cache.failure("123", FLAGS) is None
    with cache.locked("123", FLAGS):
        cache.store(model, "the graph", FLAGS)
    cache.store_failure("123", FLAGS, "the graph", "a reason")
    assert cache.find("123", FLAGS) is None


@needs_two_users
@pytest.mark.parametrize("is_theirs", [True, False], ids=["a cache of his", "a cache that all may write"])
def test_a_file_swapped_for_a_link_gives_nothing_away(place: Path, model: CompiledGraph, is_theirs: bool) -> None:
    secret = place / "secret"
    secret.touch(0o600)
    cache = cache_in(place / "cache")
    entry = place / "cache" / cache.version_directory / MODULE
    entry.mkdir(parents=True)
    for path in (place / "cache", entry.parent, entry):
        path.chmod(0o777)
    if is_theirs:
        given_away(place / "cache", entry.parent, entry)
    wanted = 0 if is_theirs else SWAPS  # nothing is written to what is another's
    with swapping_new_files_for_links(entry, secret) as swapped:
        tries = 0
        while tries < TRIES or swapped() < wanted:
            tries += 1
            cache.store(model, "the graph", FLAGS)
            assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert bool(wanted) == (len(list(entry.iterdir())) > 1), "the attacker's own link is there in any case"


@pytest.mark.parametrize("level", [0, 1, 2], ids=["cache", "version", "module"])
def test_a_directory_that_is_a_link_is_not_used(
    tmp_path: Path, model: CompiledGraph, level: int, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = cache_in(tmp_path / "cache")
    way = [tmp_path / "cache", tmp_path / "cache" / cache.version_directory]
    way.append(way[1] / MODULE)
    (tmp_path / "elsewhere").mkdir()
    for path in way[:level]:
        path.mkdir()
    way[level].symlink_to(tmp_path / "elsewhere")
    try_all(cache, model)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"WARNING ||NCC_WRAPPER||: the compile cache is not used: {way[level]} is a symbolic link;")


@needs_two_users
@pytest.mark.parametrize("level", [0, 1, 2], ids=["cache", "version", "module"])
def test_a_directory_of_another_user_is_not_used(
    place: Path, model: CompiledGraph, level: int, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = cache_in(place / "cache")
    way = [place / "cache", place / "cache" / cache.version_directory]
    way.append(way[1] / MODULE)
    for path in way[: level + 1]:
        path.mkdir()
    given_away(way[level])
    try_all(cache, model)
    assert list(way[level].iterdir()) == []
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{way[level]} belongs to user {HOSTILE}" in line


@needs_two_users
def test_a_way_to_the_cache_that_another_user_made_is_not_gone(
    place: Path, model: CompiledGraph, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "mine").mkdir()
    (place / "theirs").symlink_to(place / "mine")
    os.chown(place / "theirs", HOSTILE, HOSTILE, follow_symlinks=False)
    try_all(cache_in(place / "theirs" / "cache"), model)
    assert list((place / "mine").iterdir()) == []
    assert f"{place / 'theirs'} belongs to user {HOSTILE}" in capsys.readouterr().err
