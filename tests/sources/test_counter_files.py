from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from neurond.sources.sysfs.counter_files import CounterFiles, DescriptorBudget, may_be_replaced

from neurontools.sysfs.small_file import parse_count


class _Budget(DescriptorBudget):
    def __init__(self, left: int) -> None:
        self.left = left


def _open_descriptors(directory: Path) -> int:
    """How many files of it are open in this process, whose other threads open and close theirs meanwhile."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += descriptor.readlink().parent == directory
    return found


def _files(directory: Path, count: int) -> list[str]:
    for number in range(count):
        (directory / f"f{number}").write_text(f"{number}\n")
    return [f"f{number}" for number in range(count)]


def test_files_are_opened_once_and_read_in_place(tmp_path: Path) -> None:
    files = CounterFiles(str(tmp_path), _files(tmp_path, 5), _Budget(100), may_be_replaced=False)
    assert files.read() == [0, 1, 2, 3, 4]
    files.take_calls()
    (tmp_path / "f2").write_text("22\n")  # in place, as the driver does
    assert files.read() == [0, 1, 22, 3, 4]
    assert files.take_calls() == 5  # one pread a file
    files.close()


def test_descriptors_beyond_the_budget_are_not_kept(tmp_path: Path) -> None:
    budget = _Budget(3)
    files = CounterFiles(str(tmp_path), _files(tmp_path, 8), budget)
    assert files.read() == files.read() == list(range(8))
    assert (budget.left, _open_descriptors(tmp_path)) == (0, 3)
    files.close()
    assert (budget.left, _open_descriptors(tmp_path)) == (3, 0)


def test_a_file_that_appears_is_found_after_some_reads(tmp_path: Path) -> None:
    files = CounterFiles(str(tmp_path), ["late"], _Budget(9))
    assert files.read() == [None]
    assert files.problems == {"No such file or directory": ("late", 1)}
    (tmp_path / "late").write_text("5")  # no newline
    values = [list(files.read()) for _ in range(20)]
    assert values[-1] == [5]
    assert files.problems == {}
    files.close()


def test_what_is_no_file_is_neither_read_nor_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("/dev/zero")
    files = CounterFiles(str(tmp_path), ["pipe", "directory", "link", "with\0nul"], _Budget(9))
    assert files.read() == [None] * 4
    assert sum(count for _, count in files.problems.values()) == 4
    files.close()


def test_an_input_output_error_is_unknown_and_asked_again() -> None:
    files = CounterFiles("/proc/self", ["mem", "oom_score_adj"], _Budget(9))  # memory can't be read at 0: EIO
    for _ in range(3):
        assert files.read()[0] is None
        assert files.problems["Input/output error"] == ("mem", 1)
    files.close()


def test_a_replaced_file_is_read_anew_and_its_old_one_closed(tmp_path: Path) -> None:
    budget = _Budget(9)
    files = CounterFiles(str(tmp_path), _files(tmp_path, 1), budget)
    for number in range(50):
        (tmp_path / "new").write_text(f"{number}\n")
        (tmp_path / "new").replace(tmp_path / "f0")
        assert files.read() == [number]
    assert budget.left == 8
    files.close()


def test_sysfs_itself_keeps_its_files() -> None:
    assert not may_be_replaced("/sys/kernel")
    assert may_be_replaced("/tmp")
    assert may_be_replaced("/nowhere")


def test_the_limit_of_open_files_is_raised_as_far_as_needed() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (600, hard))
        assert DescriptorBudget(1000).left == min(1000, hard - 512)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(1512, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@given(st.integers(0, 2**64 - 1), st.sampled_from([b"", b"\n"]))
def test_counts_as_the_driver_writes_them(value: int, end: bytes) -> None:
    assert parse_count(str(value).encode() + end) == value


@given(st.binary(max_size=40))
def test_nothing_else_is_a_count(raw: bytes) -> None:
    value = parse_count(raw)
    assert value is None or (str(value).zfill(len(raw.rstrip(b"\n"))).encode() == raw.removesuffix(b"\n"))
