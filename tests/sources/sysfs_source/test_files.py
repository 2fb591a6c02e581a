"""Files that are other than the driver makes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from neurontools.testing import process_on
from tests.harness.sysfs_source import PID, MakeTree, Open, core_of


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        *((content, "is empty") for content in ("", "\n")),
        *((content, "holds no count") for content in ("-5\n", "12 34\n", "1_000\n", "\0\0", "9" * 60, "²\n")),
    ],
)
def test_a_file_that_holds_no_count(make_tree: MakeTree, open_source: Open, content: str, cause: str) -> None:
    tree = make_tree("trn1.2xlarge")
    source = open_source(tree)
    path = tree.core_path(1) / "stats/memory_usage/device_mem/tensors/total"
    tree.write(str(path.relative_to(tree.directory)), content)
    core = core_of(source, 1)
    assert core.memory.tensors_bytes is None
    assert core.memory.constants_bytes == 0
    assert [line for line in source.read().warnings if line.endswith(f"can't be read: {cause}")]
    path.write_text("5\n")
    assert core_of(source, 1).memory.tensors_bytes == 5
    assert source.read().warnings == ()


def test_a_link_is_never_followed(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.2xlarge")
    path = tree.core_path(0) / "stats/other_info/flop_count/total"
    path.unlink()
    path.symlink_to("/proc/self/mem")
    source = open_source(tree)
    assert core_of(source).flop_total is None
    assert "neuron0/neuron_core*/stats/other_info/flop_count/total can't be read: Too many levels" in str(
        source.read().warnings
    )


def test_a_file_without_permission(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.2xlarge")
    (tree.core_path(0) / "stats/other_info/flop_count/total").chmod(0)
    Path(tree.directory).parent.chmod(0o755)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)  # root may read everything
        source = open_source(tree)
    finally:
        os.seteuid(user)
    assert source.read().cores[0].flop_total is None
    assert source.read().cores[1].flop_total == 0
    assert any("can't be read: Permission denied; run neurond as root" in line for line in source.read().warnings)


def test_a_file_that_was_replaced_is_read_anew(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn1.2xlarge")
    source = open_source(tree)
    for value in range(1, 20):
        tree.set_core(0, flop_total=value)
        assert core_of(source).flop_total == value


def test_nothing_is_written_to_the_tree(make_tree: MakeTree, open_source: Open) -> None:
    tree = make_tree("trn2.3xlarge")
    tree.set_processes(process_on(PID, "python", cores=(0,), runtime_version="2.34.10", logical_neuroncore_config=2))

    def state() -> dict[str, tuple[int, int, int]]:
        entries = {}
        for directory, _, names in os.walk(tree.directory):
            for name in (*names, "."):
                status = Path(directory, name).lstat()
                entries[f"{directory}/{name}"] = (status.st_ino, status.st_mtime_ns, status.st_size)
        return entries

    before = state()
    source = open_source(tree)
    for _ in range(3):
        source.refresh()
    assert state() == before
