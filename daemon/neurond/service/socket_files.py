"""The daemon's socket files: whose they are, who may use them, and that only one daemon does."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from neurontools.errors import EXIT_FAILURE, EXIT_PERMISSION, EXIT_USAGE, UserError
from neurontools.rpc import socket_path

_PRIVATE, _SHARED = 0o600, 0o660
_PRIVATE_DIRECTORY, _SHARED_DIRECTORY = 0o700, 0o750


class SocketFiles:
    """The API socket, the attach socket beside it and the lock that keeps a second daemon away.

    Sockets are for this user only (0600), or for the members of a group too (0660). A directory that has to be made
    gets 0700, or 0750 and the group.
    """

    def __init__(self, path: str, group: str | None = None) -> None:
        self.path = path
        self.attach_path = socket_path.attach_socket(path)
        self._lock_path = path + ".lock"
        self._lock = -1
        self._group_id = None if group is None else group_id(group)

    def claim(self) -> None:
        """Makes the directory, takes the lock and removes what a daemon that died left; UserError when it can't be."""
        try:
            self._make_directory()
            self._take_lock()
            for path in (self.path, self.attach_path):
                _remove_stale(path)
        except UserError:
            self._let_go()
            raise
        except OSError as error:
            self._let_go()
            raise UserError(
                f"neurond: can't use the socket {self.path} ({error.strerror}); choose another with --socket",
                EXIT_PERMISSION if isinstance(error, PermissionError) else EXIT_FAILURE,
            ) from error

    def listen_for_attach(self) -> socket.socket:
        """The attach socket, bound and with its mode."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with closed_umask():
            listener.bind(self.attach_path)
        self.open_up(self.attach_path)
        return listener

    def open_up(self, path: str) -> None:
        """Gives a socket that was made under `closed_umask` its mode and group."""
        if self._group_id is not None:
            os.chown(path, -1, self._group_id)
        Path(path).chmod(_PRIVATE if self._group_id is None else _SHARED)

    def release(self) -> None:
        """Removes the sockets and lets the lock go; harmless when nothing is claimed."""
        if self._lock < 0:
            return
        for path in (self.path, self.attach_path):
            with contextlib.suppress(OSError):
                Path(path).unlink()
        self._let_go()

    def _let_go(self) -> None:
        """Removes the lock, if it is ours, and nothing else."""
        if self._lock < 0:
            return
        with contextlib.suppress(OSError):
            Path(self._lock_path).unlink()
        os.close(self._lock)
        self._lock = -1

    def _make_directory(self) -> None:
        directory = Path(self.path).parent
        if not directory.exists():
            directory.mkdir(parents=True, mode=_PRIVATE_DIRECTORY)
            if self._group_id is not None:
                os.chown(directory, -1, self._group_id)
                directory.chmod(_SHARED_DIRECTORY)
            return
        found = directory.stat()
        others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
        if found.st_uid not in (0, os.geteuid()) or others_write:
            raise UserError(
                f"neurond: others may change the directory {directory}; use one that is yours alone with --socket",
                EXIT_PERMISSION,
            )

    def _take_lock(self) -> None:
        while True:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _PRIVATE)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(lock, 20).decode("ascii", "replace").strip() or "unknown"
                os.close(lock)
                raise UserError(
                    f"neurond: a daemon serves {self.path} already (PID {holder}); stop it, or choose another socket "
                    "with --socket"
                ) from None
            if _is_same_file(lock, self._lock_path):
                break
            os.close(lock)  # its daemon removed the file between our open and our lock
        self._lock = lock
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


@contextlib.contextmanager
def closed_umask() -> Iterator[None]:
    """While this lasts, files are made for this user alone; not for use beside other threads that make files."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def group_id(group: str) -> int:
    """The id of a group; UserError when there is none of that name."""
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise UserError(f"neurond: there is no group {group!r}; name one of `getent group`", EXIT_USAGE) from None


def _is_same_file(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), Path(path).lstat())
    except FileNotFoundError:
        return False


def _remove_stale(path: str) -> None:
    try:
        mode = Path(path).lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UserError(f"neurond: {path} exists and is not a socket; remove it, or choose another with --socket")
    if _is_alive(path):
        raise UserError(f"neurond: another program listens on {path}; stop it, or choose another socket with --socket")
    Path(path).unlink()


def _is_alive(path: str) -> bool:
    """Whether somebody listens on a socket: only then it isn't what a dead program left."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError as error:
            return error.errno in (errno.EAGAIN, errno.EPROTOTYPE)
    return True
