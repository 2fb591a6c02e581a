"""The daemon's socket files: owner, mode, and a lock that keeps a second daemon away."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import socket
import stat
from collections.abc import Iterator

from neurontools.rpc import socket_path
from neurontools.util.directory import Directory, NotTrusted
from neurontools.util.errors import EXIT_FAILURE, EXIT_PERMISSION, EXIT_USAGE, UserError

_BACKLOG = 256  # a longer queue delays clients: with 1024, a flood of connects delayed other clients by 50 ms
_PRIVATE, _SHARED = 0o600, 0o660
_PRIVATE_DIRECTORY, _SHARED_DIRECTORY = 0o700, 0o750


class SocketFiles:
    """The API socket, the attach socket beside it, and the lock file.

    The local gRPC server listens at `inner_path`; the connection proxy opens that socket and removes its file. The gRPC
    server of the API over TLS listens at `network_path`. The sockets have mode 0600, or 0660 with a group. If the
    daemon creates the directory of the sockets, it gets mode 0700, or 0750 with a group.
    """

    def __init__(self, path: str, group: str | None = None) -> None:
        self.path = path
        self.attach_path = socket_path.attach_socket(path)
        self.inner_path = path + ".inner"
        self.network_path = path + ".tls"
        self._sockets = (path, self.attach_path, self.inner_path, self.network_path)
        self._directory_path, self._name = os.path.split(path)
        self._lock_name = f"{self._name}.lock"
        self._directory: Directory | None = None
        self._lock = -1
        self._group_id = None if group is None else group_id(group)

    def check(self) -> None:
        """Raises UserError when `claim` would fail because of the directory or the files. Changes nothing."""
        with self._refusal():
            try:
                directory = self._open_directory(make_mode=None)
            except FileNotFoundError:
                return  # claim creates it
            try:
                for path in self._sockets:
                    _check_kind(directory, path)
            finally:
                directory.close()

    def claim(self) -> None:
        """Creates the directory, takes the lock and removes old sockets. Raises UserError if that fails."""
        try:
            with self._refusal():
                self._directory = self._open_directory(make_mode=_PRIVATE_DIRECTORY)
                self._take_lock(self._directory)
                for path in self._sockets:
                    _remove_stale(self._directory, path)
        except UserError:
            self._release_lock()
            raise

    def listen(self, path: str) -> socket.socket:
        """Returns a listening Unix socket whose file has the right mode and group."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with closed_umask():
            listener.bind(path)
        listener.listen(_BACKLOG)
        self.open_up(path)
        return listener

    def open_up(self, path: str) -> None:
        """Sets the mode and group of a socket that was created under `closed_umask`.

        Raises FileExistsError if the file is no socket, and leaves the file unchanged. `claim` must be called before.
        """
        if self._directory is None:
            raise ValueError("the socket files are not claimed")
        socket_itself = self._directory.open_file(os.path.basename(path), os.O_PATH)  # noqa: PTH119
        try:
            if not stat.S_ISSOCK(os.fstat(socket_itself).st_mode):
                raise FileExistsError(errno.EEXIST, "something else is in the place of the socket", path)
            this = f"/proc/self/fd/{socket_itself}"  # fchmod fails on a descriptor from O_PATH
            if self._group_id is not None:
                os.chown(this, -1, self._group_id)
            os.chmod(this, _PRIVATE if self._group_id is None else _SHARED)  # noqa: PTH101
        finally:
            os.close(socket_itself)

    def release(self) -> None:
        """Removes the sockets and releases the lock. Does nothing before `claim`."""
        if self._lock < 0:
            return
        if self._directory is not None:
            for path in self._sockets:
                with contextlib.suppress(OSError):
                    self._directory.remove(os.path.basename(path))  # noqa: PTH119
        self._release_lock()

    def _release_lock(self) -> None:
        """Removes the lock file if this daemon has locked it, and closes the directory."""
        if self._lock >= 0:
            if self._directory is not None:
                with contextlib.suppress(OSError):
                    self._directory.remove(self._lock_name)
            os.close(self._lock)
            self._lock = -1
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    @contextlib.contextmanager
    def _refusal(self) -> Iterator[None]:
        """Converts OSError to a UserError that names the socket."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"can't use the socket {self.path} ({error.strerror}); choose another with --socket",
                EXIT_PERMISSION if isinstance(error, PermissionError) else EXIT_FAILURE,
            ) from error

    def _open_directory(self, make_mode: int | None) -> Directory:
        """Opens the sockets' directory, or creates it with `make_mode`.

        Raises UserError if other users could change the directory.
        """
        try:
            directory = Directory.open(self._directory_path or ".", make_mode=make_mode)
        except NotTrusted as error:
            raise _changeable(error.filename) from None
        try:
            if directory.exposed is not None:
                raise _changeable(directory.exposed)
            if directory.is_new:
                if self._group_id is not None:
                    directory.set_mode(_SHARED_DIRECTORY, self._group_id)
            elif directory.mode & (stat.S_IWGRP | stat.S_IWOTH) and not directory.mode & stat.S_ISVTX:
                raise _changeable(directory.path)
        except BaseException:
            directory.close()
            raise
        return directory

    def _take_lock(self, directory: Directory) -> None:
        while True:
            lock = directory.open_lock(self._lock_name)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(lock, 20).decode("ascii", "replace").strip() or "unknown"
                os.close(lock)
                raise UserError(
                    f"a daemon serves {self.path} already (PID {holder}); stop it, or choose another socket "
                    "with --socket"
                ) from None
            if _is_same_file(lock, directory, self._lock_name):
                break
            os.close(lock)  # another daemon removed the lock file before flock succeeded
        self._lock = lock
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


@contextlib.contextmanager
def closed_umask() -> Iterator[None]:
    """Sets a umask that makes new files private. Not for a process with other threads, which share the umask."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def group_id(group: str) -> int:
    """Returns the ID of a group. Raises UserError for an unknown group."""
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise UserError(f"there is no group {group!r}; name one of `getent group`", EXIT_USAGE) from None


def _changeable(directory: str) -> UserError:
    return UserError(
        f"other users may change the directory {directory}; use one that only you may write to with --socket",
        EXIT_PERMISSION,
    )


def _is_same_file(descriptor: int, directory: Directory, name: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(name, dir_fd=directory.descriptor))
    except FileNotFoundError:
        return False


def _remove_stale(directory: Directory, path: str) -> None:
    if not _check_kind(directory, path):
        return
    if _is_alive(path):
        raise UserError(f"another program listens on {path}; stop it, or choose another socket with --socket")
    directory.remove(os.path.basename(path))  # noqa: PTH119


def _check_kind(directory: Directory, path: str) -> bool:
    """Returns whether a socket exists at this path. Raises UserError for any other file."""
    name = os.path.basename(path)  # noqa: PTH119
    if not directory.is_there(name):
        return False
    if not stat.S_ISSOCK(os.lstat(name, dir_fd=directory.descriptor).st_mode):
        raise UserError(f"{path} exists and is not a socket; remove it, or choose another with --socket")
    return True


def _is_alive(path: str) -> bool:
    """Returns whether a program listens on the socket at this path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError as error:
            return error.errno in (errno.EAGAIN, errno.EPROTOTYPE)
    return True
