"""Another user of the host, who tries what the kernel lets him."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.waiting import wait_until

HOSTILE = 65534
"""The user and group that attacks are run as."""

needs_two_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")

_SWAP = """
import ctypes, os, sys
directory, target = sys.argv[1:]
os.setgroups([]); os.setgid(65534); os.setuid(65534)
libc = ctypes.CDLL(None, use_errno=True)
events = libc.inotify_init1(0)
if libc.inotify_add_watch(events, directory.encode(), 0x100) < 0:
    sys.exit(os.strerror(ctypes.get_errno()))
os.chdir(directory)
os.symlink(target, "link")
print("ready", flush=True)
while True:
    data = os.read(events, 65536)
    while data:
        size = int.from_bytes(data[12:16], sys.byteorder)
        name, data = data[16 : 16 + size].rstrip(b"\\0"), data[16 + size :]
        if name.startswith(b"."):
            try:
                os.rename("link", name)
                os.symlink(target, "link")
                print("swapped", flush=True)
            except FileExistsError:
                pass
"""


_ATTACK = """
import os, sys
path = sys.argv[1]
directory = os.path.dirname(path)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
attacks = {
    "write": lambda: open(path, "r+b").write(b"x"),
    "chmod": lambda: os.chmod(path, 0o666),
    "link beside": lambda: os.symlink("/etc/passwd", os.path.join(directory, ".link")),
    "rename": lambda: os.rename(path, path + ".old"),
    "remove": lambda: os.unlink(path),
    "rename directory": lambda: os.rename(directory, directory + ".old"),
}
for name, attack in attacks.items():
    try:
        attack()
    except OSError:
        continue
    print(name)
"""


def successful_attacks(path: Path) -> list[str]:
    """What a process of the other user manages to do to a file, its place and its directory."""
    command = [sys.executable, "-S", "-c", _ATTACK, str(path)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


@contextmanager
def public_directory() -> Iterator[Path]:
    """A directory in /tmp that everybody can look into; pytest's own are closed."""
    path = Path(tempfile.mkdtemp(prefix="neurontools-hostile-", dir="/tmp"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def swapping_new_files_for_links(directory: Path, target: Path) -> Iterator[Callable[[], int]]:
    """While this lasts, each new hidden file of a directory is at once replaced by a link, as fast as inotify tells.

    Gives what tells how many were replaced.
    """
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen([sys.executable, "-S", "-c", _SWAP, str(directory), str(target)], stdout=errors) as attacker,
    ):
        try:
            wait_until(lambda: os.pread(errors.fileno(), 6, 0) == b"ready\n")
            yield lambda: os.pread(errors.fileno(), 1 << 20, 0).count(b"swapped\n")
        finally:
            attacker.kill()
