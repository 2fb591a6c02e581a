"""Directories that are opened step by step, and what is done in them."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from neurontools.util.directory import Directory, NotTrusted
from tests.harness.hostile_user import HOSTILE, needs_two_users, public_directory, swapping_new_files_for_links
from tests.harness.waiting import HANG_SECONDS

SWAPS = 20


@pytest.fixture
def place() -> Iterator[Path]:
    with public_directory() as path:
        yield path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_replaced_as_a_whole_with_its_mode(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with Directory.open(tmp_path / "a/b", make_mode=0o750) as directory:
            assert (directory.is_new, directory.path) == (True, str(tmp_path / "a/b"))
            directory.replace("file", b"one")
            directory.replace("file", b"two", 0o640)
            assert directory.read("file", 3) == b"two"
            assert directory.read("file", 2) is None
            assert directory.entry_names() == ["file"]
    finally:
        os.umask(before)
    assert mode(tmp_path / "a/b/file") == 0o640
    with Directory.open(tmp_path / "a/b", make_mode=0o700) as directory:
        assert not directory.is_new
        directory.remove("file")
        assert not directory.is_there("file")


def test_links_of_ones_own_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "b")
    (tmp_path / "relative").symlink_to("a/../b")
    monkeypatch.chdir(tmp_path)
    for path in ("link", "a/../link/.", "link/../b", "relative"):
        for given in (path, f"{tmp_path}/{path}"):
            with Directory.open(given) as directory:
                assert os.path.samestat(os.fstat(directory.descriptor), (tmp_path / "b").stat())


def test_links_in_a_circle_a_missing_directory_and_a_file(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        Directory.open(tmp_path / "one")
    with pytest.raises(FileNotFoundError):
        Directory.open(tmp_path / "none")
    with pytest.raises(NotADirectoryError):
        Directory.open(tmp_path / "file")
    assert not [path for path in opened_paths() if path.startswith(str(tmp_path))]


def opened_paths() -> list[str]:
    """What this process has open; its other threads may close theirs meanwhile."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return found


def test_links_second_names_and_pipes_in_a_directory_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_text("data")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "directory").symlink_to("../elsewhere")
    (tmp_path / "here" / "file").symlink_to("../elsewhere/precious")
    with Directory.open(tmp_path / "here") as directory:
        with pytest.raises(NotTrusted) as refused:
            directory.open_subdirectory("directory", make_mode=0o755)
        assert refused.value.filename == str(tmp_path / "here" / "directory")
        with pytest.raises(OSError, match="symbolic links"):
            directory.open_lock("file")
        with pytest.raises(OSError, match="symbolic links"):
            directory.read("file", 100)
        os.link(tmp_path / "elsewhere" / "precious", tmp_path / "here" / "lock")
        os.mkfifo(tmp_path / "here" / "pipe")
        for name in ("lock", "pipe"):
            with pytest.raises(NotTrusted):
                directory.open_lock(name)
        directory.replace("file", b"ours")
    assert (tmp_path / "here" / "file").read_bytes() == b"ours"
    assert (tmp_path / "elsewhere" / "precious").read_text() == "data"


@needs_two_users
def test_what_belongs_to_another_user_is_not_used(place: Path) -> None:
    for name in ("theirs", "mine", "mine/theirs"):
        (place / name).mkdir()
    (place / "mine/file").touch()
    (place / "link").symlink_to("mine")
    for name in ("theirs", "mine/theirs", "mine/file", "link"):
        os.chown(place / name, HOSTILE, HOSTILE, follow_symlinks=False)
    for path in ("theirs", "theirs/below", "link", "link/theirs"):
        with pytest.raises(NotTrusted, match=f"belongs to user {HOSTILE}"):
            Directory.open(place / path, make_mode=0o755)
    with Directory.open(place / "mine") as directory:
        assert directory.read("file", 100) is None
        with pytest.raises(NotTrusted):
            directory.open_subdirectory("theirs")
        with pytest.raises(NotTrusted):
            directory.open_lock("file")
    assert not (place / "theirs/below").exists()


@needs_two_users
def test_a_file_swapped_for_a_link_gives_nothing_away(place: Path) -> None:
    secret, shared = place / "secret", place / "shared"
    secret.touch(0o600)
    shared.mkdir()
    shared.chmod(0o777)
    with swapping_new_files_for_links(shared, secret) as swapped, Directory.open(shared) as directory:
        while swapped() < SWAPS:
            directory.replace("file", b"ours")
            assert mode(secret) == 0o600
    assert secret.read_bytes() == b""


@needs_two_users
def test_a_group_that_shares_a_directory_trusts_its_members(place: Path) -> None:
    group = 4711
    os.chown(place, -1, group)
    place.chmod(0o3770)
    with Directory.open(place) as directory:
        assert directory.shared_group == group
        with directory.open_subdirectory("ours", make_mode=0o755) as made:
            assert (made.mode, made.shared_group) == (0o3770, group)
        (place / "theirs").mkdir()
        os.chown(place / "theirs", HOSTILE, group)
        (place / "theirs").chmod(0o3770)
        with directory.open_subdirectory("theirs") as theirs:
            theirs.replace("file", b"data")
            os.chown(place / "theirs/file", HOSTILE, group)
            assert theirs.read("file", 100) == b"data"
            os.close(theirs.open_lock("lock"))
            assert mode(place / "theirs/lock") == 0o660
    for other in (0o1777, 0o2770, 0o3777, 0o1770):
        place.chmod(other)
        with Directory.open(place) as directory:
            assert directory.shared_group is None
            with pytest.raises(NotTrusted):
                directory.open_subdirectory("theirs")


def test_a_directory_above_that_everybody_may_change_is_told(tmp_path: Path) -> None:
    (tmp_path / "open/below").mkdir(parents=True)
    for found_mode, exposed in ((0o777, str(tmp_path / "open")), (0o1777, None), (0o755, None)):
        (tmp_path / "open").chmod(found_mode)
        with Directory.open(tmp_path / "open/below") as directory:
            assert directory.exposed == exposed
        with Directory.open(tmp_path / "open") as directory:
            assert directory.exposed is None


def test_two_that_make_one_directory_at_once_both_have_it(tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def make() -> int:
        made = 0
        for number in range(100):
            both.wait(HANG_SECONDS)
            with Directory.open(tmp_path / f"{number}/a/b", make_mode=0o700) as found:
                made += found.is_new
        return made

    with ThreadPoolExecutor(2) as makers:
        assert sum(maker.result() for maker in [makers.submit(make) for _ in range(2)]) == 100
