"""Writes a tree of small files: each replaced as a whole, and all of them gone in the end."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from neurontools.errors import EXIT_USAGE, UserError

_MARKER = ".neurontools-tree"
_STAGED = ".neurontools-staged"
_FORBIDDEN, _SHARED_MEMORY = ("/sys/", "/proc/", "/dev/"), "/dev/shm/"  # noqa: S108
_MARKER_TEXT = b"A tree made by neurontools; it is removed when its maker ends.\n"


class TreeWriter:
    """A directory that is ours while this object lives: new, empty, or left behind by a maker that was killed.

    A reader sees a file's old content or its new one, never a part. `close` removes what was written, and directories
    that are empty then. UserError when the directory can't be had. Not safe for threads.
    """

    def __init__(self, directory: str) -> None:
        self.directory = str(Path(directory).absolute())
        self._texts: dict[str, str] = {}
        self._links: dict[str, str] = {}
        self._made: list[str] = []
        self._known: set[str] = {self.directory}
        self._marker = -1
        try:
            self._claim()
        except OSError as error:
            self.close()
            raise UserError(
                f"can't make a sysfs tree in {directory}: {error.strerror}; give a directory that can be written",
                EXIT_USAGE,
            ) from None
        except UserError:
            self.close()
            raise

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Makes the file at this relative path hold this text; nothing is done when it holds it already."""
        if self._texts.get(path) == text:
            return
        staged, target = f"{self.directory}/{_STAGED}", f"{self.directory}/{path}"
        if path not in self._texts:
            self._make_directories(os.path.dirname(target))  # noqa: PTH120
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, text.encode())
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
        os.rename(staged, target)  # noqa: PTH104
        self._texts[path] = text

    def link(self, path: str, target: str) -> None:
        """Makes a symbolic link at this relative path."""
        if self._links.get(path) == target:
            return
        whole = f"{self.directory}/{path}"
        self._make_directories(os.path.dirname(whole))  # noqa: PTH120
        with contextlib.suppress(FileNotFoundError):
            os.unlink(whole)  # noqa: PTH108
        os.symlink(target, whole)  # noqa: PTH211
        self._links[path] = target

    def remove(self, path: str) -> None:
        """Removes what was written at and below this relative path."""
        below = f"{path}/"
        for entries in (self._texts, self._links):
            for name in [name for name in entries if name == path or name.startswith(below)]:
                with contextlib.suppress(OSError):
                    os.unlink(f"{self.directory}/{name}")  # noqa: PTH108
                del entries[name]
        whole = f"{self.directory}/{path}"
        self._remove_directories(lambda made: made == whole or made.startswith(f"{whole}/"))

    def close(self) -> None:
        """Removes everything that was written; what others put there stays, with the directories that hold it."""
        for path in (*self._texts, *self._links, _STAGED):
            with contextlib.suppress(OSError):
                os.unlink(f"{self.directory}/{path}")  # noqa: PTH108
        self._texts.clear()
        self._links.clear()
        if self._marker >= 0:
            with contextlib.suppress(OSError):
                os.unlink(f"{self.directory}/{_MARKER}")  # noqa: PTH108
            os.close(self._marker)
            self._marker = -1
        self._remove_directories(lambda _: True)

    def _remove_directories(self, is_meant: object) -> None:
        kept = []
        for directory in reversed(self._made):
            if is_meant(directory):  # type: ignore[operator]
                with contextlib.suppress(OSError):
                    os.rmdir(directory)  # noqa: PTH106
                self._known.discard(directory)
            else:
                kept.append(directory)
        self._made = kept[::-1]

    def _claim(self) -> None:
        whole = f"{os.path.realpath(self.directory)}/"
        if whole.startswith(_FORBIDDEN) and not whole.startswith(_SHARED_MEMORY):
            raise UserError(
                f"{self.directory} is the operating system's own; give a directory of your own for the tree", EXIT_USAGE
            )
        self._known.discard(self.directory)
        self._make_directories(self.directory)
        entries = set(os.listdir(self.directory))  # noqa: PTH208
        if entries and _MARKER not in entries:
            raise UserError(
                f"{self.directory} is not empty and no tree of ours; give an empty or new directory", EXIT_USAGE
            )
        self._marker = os.open(
            f"{self.directory}/{_MARKER}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644
        )
        try:
            fcntl.flock(self._marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._marker)
            self._marker = -1
            raise UserError(
                f"{self.directory} holds the tree of another process that is still running; give another directory",
                EXIT_USAGE,
            ) from None
        os.ftruncate(self._marker, 0)
        os.write(self._marker, _MARKER_TEXT)
        if entries:  # left behind: the directory was made for a tree then, and is as good as made by us
            self._made.append(self.directory)
        for entry in entries - {_MARKER}:
            _remove_left_behind(Path(self.directory) / entry)

    def _make_directories(self, directory: str) -> None:
        if directory in self._known:
            return
        if not os.path.isdir(directory):  # noqa: PTH112
            self._make_directories(os.path.dirname(directory))  # noqa: PTH120
            os.mkdir(directory, 0o755)  # noqa: PTH102
            self._made.append(directory)
        elif directory.startswith(f"{self.directory}/"):
            self._made.append(directory)
        self._known.add(directory)


def _remove_left_behind(path: Path) -> None:
    import shutil

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
