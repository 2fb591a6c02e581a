"""Opens directories so that no other user can replace them, and works on their files by descriptor.

The kernel resolves a path at each use, so the owner of any directory in the path can redirect it. `Directory` resolves
the path once, from the root down. Each directory and symbolic link in the path must belong to this user or to root. All
later operations use the descriptor of the directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

_PATH_ONLY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40  # limit of symbolic links in a path, the same as the kernel's
_PARENT_MODE = 0o755
_SHARED_MODE = stat.S_ISVTX | stat.S_ISGID | stat.S_IWGRP


def split_file_path(path: str) -> tuple[str, str]:
    """Returns the directory and the name of a file; the directory is "." for a name alone."""
    directory, slash, name = path.rpartition("/")
    return directory or slash or ".", name


class NotTrusted(PermissionError):
    """Another user could have placed this file. `filename` is its path, `strerror` the reason."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(errno.EPERM, why, path)


class Directory:
    """An open directory. Close it, or use it as a context manager. Methods take names of entries, not paths.

    `path` is used in messages only. `is_new` says whether `open` or `open_subdirectory` created the directory.
    `exposed` is a directory on the path whose entries others can replace (writable for everybody, not sticky), or None.
    Operations raise OSError. Thread-safe.
    """

    def __init__(self, descriptor: int, path: str, *, is_new: bool = False, exposed: str | None = None) -> None:
        self.descriptor = descriptor
        self.path = path
        self.is_new = is_new
        self.exposed = exposed

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, make_mode: int | None = None, may_be_link: bool = True) -> Directory:
        """Opens a directory. Raises NotTrusted if another user owns a part of the path.

        With `make_mode`, creates a missing directory with this mode, and missing parents with 0755, both subject to the
        umask. Another process may create them at the same time.
        """
        return _Walk(os.fspath(path), make_mode, may_be_link).directory()

    def open_subdirectory(self, name: str, *, make_mode: int | None = None) -> Directory:
        """Opens a subdirectory of this user, root or `shared_group`. Raises NotTrusted for other owners and for links.

        With `make_mode`, creates a missing subdirectory with this mode. In a shared directory, the new subdirectory has
        the mode of the shared directory instead.
        """
        group = self.shared_group
        is_new = make_mode is not None and _make(self.descriptor, name, make_mode)
        path = f"{self.path}/{name}"
        descriptor = os.open(name, _PATH_ONLY, dir_fd=self.descriptor)
        try:
            found = os.fstat(descriptor)
            _check(found, path, group)
            if stat.S_ISLNK(found.st_mode):
                raise NotTrusted(path, "is a symbolic link")
            if not stat.S_ISDIR(found.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            directory = Directory(descriptor, path, is_new=is_new, exposed=self.exposed)
            if is_new and group is not None:
                directory.set_mode(self.mode)
        except BaseException:
            os.close(descriptor)
            raise
        return directory

    @property
    def mode(self) -> int:
        return stat.S_IMODE(os.fstat(self.descriptor).st_mode)

    @property
    def owner(self) -> int:
        return os.fstat(self.descriptor).st_uid

    @property
    def shared_group(self) -> int | None:
        """Group that may write to the directory under a shared mode, such as 3770. None if the mode is not shared."""
        found = os.fstat(self.descriptor)
        is_shared = found.st_mode & _SHARED_MODE == _SHARED_MODE and not found.st_mode & stat.S_IWOTH
        return found.st_gid if is_shared else None

    def set_mode(self, mode: int, group: int | None = None) -> None:
        with self._readable() as descriptor:
            if group is not None:
                os.fchown(descriptor, -1, group)
            os.fchmod(descriptor, mode)

    def entry_names(self) -> list[str]:
        with self._readable() as descriptor:
            return os.listdir(descriptor)  # noqa: PTH208

    def is_there(self, name: str) -> bool:
        """Returns whether an entry of this name exists, even if it is a broken link."""
        try:
            os.lstat(name, dir_fd=self.descriptor)
        except FileNotFoundError:
            return False
        return True

    def open_file(self, name: str, flags: int, mode: int = 0o600) -> int:
        """Opens a file and returns its descriptor. Does not follow symbolic links or block on a FIFO."""
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.open(name, flags, mode, dir_fd=self.descriptor)

    def open_lock(self, name: str) -> int:
        """Opens a lock file, creating it if missing, and returns its descriptor.

        Raises NotTrusted unless the lock is a regular file with a single hard link that belongs to this user, root, or
        `shared_group`.
        """
        group = self.shared_group
        descriptor = self._open_or_make(name, 0o600 if group is None else 0o660)
        try:
            found = os.fstat(descriptor)
            _check(found, f"{self.path}/{name}", group)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise NotTrusted(f"{self.path}/{name}", "is not a regular file with one name")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def read(self, name: str, most_bytes: int) -> bytes | None:
        """Returns the content of a file of this user, root, or `shared_group`.

        Returns None if the file has another owner, is not a regular file, or has more than `most_bytes`.
        """
        return self._read(name, most_bytes, self.shared_group, 0)

    def read_own(self, name: str, most_bytes: int) -> bytes | None:
        """Returns the content of a file that only this user or root can write to.

        Returns None if others can write to the file, or if it has more than `most_bytes`.
        """
        return self._read(name, most_bytes, None, stat.S_IWGRP | stat.S_IWOTH)

    def _read(self, name: str, most_bytes: int, group: int | None, refused_mode: int) -> bytes | None:
        with os.fdopen(self.open_file(name, os.O_RDONLY), "rb") as file:
            found = os.fstat(file.fileno())
            if not _is_trusted(found, group) or not stat.S_ISREG(found.st_mode) or found.st_mode & refused_mode:
                return None
            content = file.read(most_bytes + 1)
        return content if len(content) <= most_bytes else None

    def replace(self, name: str, content: bytes, mode: int = 0o644) -> None:
        """Replaces a file atomically by one with this content and mode. The umask does not apply."""
        with self.replacing(name, mode) as descriptor:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]

    @contextlib.contextmanager
    def replacing(self, name: str, mode: int = 0o644) -> Iterator[int]:
        """Yields the descriptor of a new file, which replaces `name` atomically at the end.

        An exception in between removes the new file and keeps the old one. The umask does not apply.
        """
        draft = f".{name}.{os.urandom(6).hex()}"
        descriptor = self.open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            try:
                yield descriptor
                # fchmod, not chmod: another user may have replaced the name by a link to a private file.
                os.fchmod(descriptor, mode)
            finally:
                os.close(descriptor)
            os.rename(draft, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(draft)
            raise

    def remove(self, name: str) -> None:
        os.unlink(name, dir_fd=self.descriptor)

    def close(self) -> None:
        if self.descriptor != -1:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _readable(self) -> Iterator[int]:
        """Yields a readable descriptor of the directory, because O_PATH descriptors permit no listing or fchmod."""
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.descriptor)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open_or_make(self, name: str, mode: int) -> int:
        while True:
            # Tries without O_CREAT first: in a sticky directory, the kernel refuses O_CREAT on another user's file.
            with contextlib.suppress(FileNotFoundError):
                return self.open_file(name, os.O_RDWR)
            with contextlib.suppress(FileExistsError):
                descriptor = self.open_file(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
                os.fchmod(descriptor, mode)
                return descriptor


class _Walk:
    """Resolves a path one name at a time, from the root, and checks the owner of each directory and link."""

    def __init__(self, path: str, make_mode: int | None, may_be_link: bool) -> None:
        if not path.startswith("/"):
            path = f"{os.getcwd()}/{path}"  # noqa: PTH109
        self._path = path
        self._make_mode = make_mode
        self._may_be_link = may_be_link
        self._ahead = _parts(path)
        self._links = 0
        self._exposed: str | None = None
        self._here = ""
        self._descriptor = -1

    def directory(self) -> Directory:
        is_new = False
        self._go_to_top()
        try:
            while self._ahead:
                name = self._ahead.pop()
                if self._make_mode is not None and name != "..":
                    is_new = _make(self._descriptor, name, _PARENT_MODE if self._ahead else self._make_mode)
                self._enter_component(name)
            path = self._path.rstrip("/") or "/"
            return Directory(self._descriptor, path, is_new=is_new, exposed=self._exposed)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _enter_component(self, name: str) -> None:
        path = f"{self._here}/{name}"
        descriptor = os.open(name, _PATH_ONLY, dir_fd=self._descriptor)
        try:
            found = os.fstat(descriptor)
            _check(found, path)
            if stat.S_ISLNK(found.st_mode):
                self._follow_link(descriptor, path)
                return
            if not stat.S_ISDIR(found.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            if self._ahead and found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
                self._exposed = path
            descriptor, self._descriptor = self._descriptor, descriptor
            self._here = path
        finally:
            os.close(descriptor)

    def _follow_link(self, link: int, path: str) -> None:
        if not self._ahead and not self._may_be_link:
            raise NotTrusted(path, "is a symbolic link")
        self._links += 1
        if self._links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink("", dir_fd=link)
        self._ahead += _parts(target)
        if target.startswith("/"):
            self._go_to_top()

    def _go_to_top(self) -> None:
        descriptor = os.open("/", _PATH_ONLY | os.O_DIRECTORY)
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._here = descriptor, ""


def _parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _make(above: int, name: str, mode: int) -> bool:
    try:
        os.mkdir(name, mode, dir_fd=above)
    except FileExistsError:
        return False
    except OSError:
        # mkdir on a read-only file system may fail with another error although the directory exists.
        with contextlib.suppress(OSError):
            os.lstat(name, dir_fd=above)
            return False
        raise
    return True


def _check(found: os.stat_result, path: str, group: int | None = None) -> None:
    if not _is_trusted(found, group):
        raise NotTrusted(path, f"belongs to user {found.st_uid}")


def _is_trusted(found: os.stat_result, group: int | None = None) -> bool:
    """Returns whether a file belongs to this user, to root, or to this group.

    The owner of / is trusted too, because in a user namespace root's files may appear to belong to another user.
    """
    if found.st_uid in (0, os.geteuid()) or (group is not None and found.st_gid == group):
        return True
    return found.st_uid == os.stat("/").st_uid  # noqa: PTH116
