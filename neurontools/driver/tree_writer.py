"""Writes a directory tree that other processes may read at the same time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from neurontools.util.directory import Directory, NotTrusted
from neurontools.util.errors import EXIT_USAGE, UserError

TYPE_CHECKING = False  # importing typing.TYPE_CHECKING would cost several milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterator


_MARKER = ".neurontools-tree"
_STAGED = ".neurontools-staged"
_FORBIDDEN, _SHARED_MEMORY = ("/sys/", "/proc/", "/dev/"), "/dev/shm/"  # noqa: S108
_MARKER_TEXT = b"A tree made by neurontools; it is removed when its maker ends.\n"


class TreeWriter:
    """Writes a tree into a directory that is new, empty, or left over from a killed process, and locks it.

    No other user may write to the directory, so nobody can replace a subdirectory with a link. Readers see a file's old
    content or its new content, never a part. `close` removes all that was written, and directories that become empty.
    Raises UserError if the directory can't be used. Not thread-safe.
    """

    def __init__(self, directory: str) -> None:
        self.directory = str(Path(directory).absolute())
        self._texts: dict[str, str] = {}
        self._links: dict[str, str] = {}
        self._created_parents: list[str] = []
        self._below: dict[str, dict[str, None]] = {"": {}}  # maps each created directory to its entries
        self._root: Directory | None = None
        self._marker = -1
        try:
            with _user_errors(directory):
                self._claim()
        except UserError:
            self.close()
            raise

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Writes the file at this relative path atomically, unless it already has this text."""
        if self._texts.get(path) == text:
            return
        root = self._open_root
        if path not in self._texts:
            self._enter(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(_STAGED, flags, 0o600, dir_fd=root)
        try:
            rest = text.encode()
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
        os.rename(_STAGED, path, src_dir_fd=root, dst_dir_fd=root)
        self._texts[path] = text

    def link(self, path: str, target: str) -> None:
        if self._links.get(path) == target:
            return
        self._enter(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path, dir_fd=self._open_root)
        os.symlink(target, path, dir_fd=self._open_root)
        self._links[path] = target

    def remove(self, path: str) -> None:
        """Removes all written entries at and below this relative path."""
        for name in list(self._below.get(path, ())):
            self.remove(name)
        if path in self._below:
            with contextlib.suppress(OSError):
                os.rmdir(path, dir_fd=self._open_root)
            del self._below[path]
        elif path in self._texts or path in self._links:
            with contextlib.suppress(OSError):
                os.unlink(path, dir_fd=self._open_root)
            self._texts.pop(path, None)
            self._links.pop(path, None)
        self._below.get(os.path.dirname(path), {}).pop(path, None)  # noqa: PTH120

    def close(self) -> None:
        """Removes all written entries. Keeps files of other programs, and the directories that contain them."""
        if self._root is not None:
            if self._marker >= 0:
                for path in list(self._below[""]):
                    self.remove(path)
                for path in (_STAGED, _MARKER):
                    with contextlib.suppress(OSError):
                        os.unlink(path, dir_fd=self._root.descriptor)
                os.close(self._marker)
                self._marker = -1
            self._root.close()
            self._root = None
        for directory in self._created_parents:
            with contextlib.suppress(OSError):
                os.rmdir(directory)  # noqa: PTH106
        self._created_parents = []

    @property
    def _open_root(self) -> int:
        if self._root is None:
            raise ValueError("the tree is closed")
        return self._root.descriptor

    def _claim(self) -> None:
        _refuse_forbidden(self.directory)
        missing = _missing(self.directory)
        root = self._root = Directory.open(self.directory, make_mode=0o755)
        self._created_parents = missing
        entries = _usable_entries(root)
        marker = root.open_lock(_MARKER)
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(marker)
            raise UserError(
                f"{self.directory} holds the tree of another process that is still running; give another directory",
                EXIT_USAGE,
            ) from None
        self._marker = marker
        os.fchmod(marker, 0o644)
        os.ftruncate(marker, 0)
        os.write(marker, _MARKER_TEXT)
        if entries and not missing:  # a killed process left this tree: `close` may remove the directory too
            self._created_parents = [self.directory]
        for entry in entries - {_MARKER}:
            _remove_left_behind(root, entry)

    def _enter(self, path: str) -> None:
        """Records an entry of the tree, and creates its parent directories."""
        directory = os.path.dirname(path)  # noqa: PTH120
        if directory not in self._below:
            self._enter(directory)
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory, 0o755, dir_fd=self._open_root)
            self._below[directory] = {}
        self._below[directory][path] = None


def check_directory(directory: str) -> None:
    """Raises UserError if no tree can be created in this directory.

    Changes nothing, and ignores the lock of another process.
    """
    _refuse_forbidden(directory)
    if os.path.lexists(directory):
        with _user_errors(directory), Directory.open(directory) as root:
            _usable_entries(root)


@contextlib.contextmanager
def _user_errors(directory: str) -> Iterator[None]:
    try:
        yield
    except NotTrusted as error:
        raise UserError(
            f"can't create a sysfs tree in {directory}: {error.filename} {error.strerror}; give one of your own",
            EXIT_USAGE,
        ) from None
    except OSError as error:
        raise UserError(
            f"can't create a sysfs tree in {directory}: {error.strerror}; give a writable directory", EXIT_USAGE
        ) from None


def _refuse_forbidden(directory: str) -> None:
    whole = f"{os.path.realpath(directory)}/"
    if whole.startswith(_FORBIDDEN) and not whole.startswith(_SHARED_MEMORY):
        raise UserError(
            f"{directory} belongs to the operating system; give a directory of your own for the tree", EXIT_USAGE
        )


def _usable_entries(root: Directory) -> set[str]:
    """Returns the names in the directory. Raises UserError unless it is empty or has a killed process's tree."""
    if root.owner != os.geteuid() or root.mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UserError(
            f"other users may change the directory {root.path}; give one that only you may write to", EXIT_USAGE
        )
    entries = set(root.entry_names())
    if entries and _MARKER not in entries:
        raise UserError(
            f"{root.path} is not empty and holds no exported tree; give an empty or new directory", EXIT_USAGE
        )
    return entries


def _missing(directory: str) -> list[str]:
    """Returns those directories of a path that don't exist, the deepest first."""
    found = []
    while not os.path.lexists(directory):
        found.append(directory)
        directory = os.path.dirname(directory)  # noqa: PTH120
    return found


def _remove_left_behind(root: Directory, name: str) -> None:
    import shutil

    if stat.S_ISDIR(os.lstat(name, dir_fd=root.descriptor).st_mode):
        shutil.rmtree(name, dir_fd=root.descriptor)
    else:
        root.remove(name)
