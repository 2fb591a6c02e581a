from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from neurontools.driver.tree_writer import TreeWriter
from neurontools.util.errors import EXIT_FAILURE, UserError
from tests.harness.waiting import run_to_end


def _entries(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def test_files_links_and_modes(tmp_path: Path) -> None:
    writer = TreeWriter(str(tmp_path / "on/the/way/tree"))
    writer.write("a/b/count", "7", 0o444)
    writer.link("a/link", "b")
    count = tmp_path / "on/the/way/tree/a/link/count"
    assert (count.read_text(), count.stat().st_mode & 0o7777) == ("7", 0o444)
    writer.close()
    assert list(tmp_path.iterdir()) == [], "nor the directories made on the way"


@pytest.mark.slow
def test_a_reader_sees_a_whole_value_at_any_time(tmp_path: Path) -> None:
    writer = TreeWriter(str(tmp_path / "tree"))
    texts = [f"{10**length}\n" for length in range(20)]
    writer.write("count", texts[0])
    wrong: list[str] = []
    ending = threading.Event()

    def read() -> None:
        while not ending.is_set():
            text = (tmp_path / "tree/count").read_text()
            if text not in texts:
                wrong.append(text)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(25):
        for text in texts:
            writer.write("count", text)
    ending.set()
    reader.join()
    writer.close()
    assert wrong == []


def test_what_others_put_there_stays(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    writer = TreeWriter(str(tmp_path / "tree"))
    writer.write("a/mine", "1")
    (tmp_path / "tree/a/theirs").write_text("2")
    writer.close()
    assert _entries(tmp_path / "tree") == {"a", "a/theirs"}


def test_parts_can_be_removed_and_made_again(tmp_path: Path) -> None:
    with_parts = TreeWriter(str(tmp_path / "tree"))
    for _ in range(3):
        with_parts.write("a/b/c", "1")
        with_parts.link("a/b/d", "c")
        with_parts.write("a2", "1")
        with_parts.remove("a")
        assert _entries(tmp_path / "tree") == {"a2", ".neurontools-tree"}
    with_parts.close()


def test_only_new_empty_or_abandoned_directories_are_taken(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="is not empty and holds no exported tree"):
        TreeWriter(str(taken))
    assert (taken / "thesis.tex").read_text() == "years of work"
    ours = TreeWriter(str(tmp_path / "ours"))
    with pytest.raises(UserError, match="of another process that is still running"):
        TreeWriter(str(tmp_path / "ours"))
    ours.close()
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UserError, match=r"can't create a sysfs tree in .*file"):
        TreeWriter(str(file))
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/.neurontools-tree").hardlink_to(file)
    with pytest.raises(UserError, match="is not a regular file with one name; give one of your own"):
        TreeWriter(str(tmp_path / "linked"))


def test_the_operating_systems_own_trees_are_refused_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/sys")
    link = str(tmp_path / "link/devices")
    for directory in ("/sys", "/sys/neuron", "/proc/neuron", "/dev/neuron", "/sys/class/neuron_device", link):
        with pytest.raises(UserError, match="belongs to the operating system"):
            TreeWriter(directory)


def test_a_tree_whose_maker_was_killed_is_taken_over(tmp_path: Path) -> None:
    place = tmp_path / "tree"
    script = (
        "import sys, time; from neurontools.driver.tree_writer import TreeWriter; t = TreeWriter(sys.argv[1]);"
        "t.write('old/file', '1'); print('made', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(place)], stdout=subprocess.PIPE) as maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == b"made\n"
        os.kill(maker.pid, signal.SIGKILL)
    assert (place / "old/file").exists()
    TreeWriter(str(place)).close()
    assert not place.exists()


def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for mode in (0o777, 0o1777, 0o775):
        (tmp_path / "tree").chmod(mode)
        with pytest.raises(UserError, match=r"other users may change the directory .*/tree; give one that only you"):
            TreeWriter(str(tmp_path / "tree"))
        assert _entries(tmp_path) == {"tree"}


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"], check=False).returncode != 0,
    reason="no user namespaces here",
)
def test_a_full_disk_is_told_in_a_line_and_left_empty(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = [sys.executable, "-m", "neurond", "--simulate", "trn1.2xlarge", "--log-level", "error"]
    mount = f"mount -t tmpfs -o size=64k none {disk}"
    script = f'{mount}; "$@" --socket {tmp_path}/n.sock --export-sysfs {disk}/tree; code=$?; ls -A {disk}; exit $code'
    done = run_to_end(["unshare", "-Urm", "sh", "-c", script, "sh", *command])
    assert done.stderr == (
        f"neurond: --export-sysfs: can't write a sysfs tree to {disk}/tree: No space left on device; give a directory "
        "with room for it\n"
    )
    assert (done.returncode, done.stdout) == (EXIT_FAILURE, "")
