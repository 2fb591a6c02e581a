"""--output: the file that gets the output of neuron-top instead of standard output."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from neurontools.util.command_lifecycle import OutputError
from neurontools.util.directory import Directory, split_file_path
from neurontools.util.errors import EXIT_FAILURE, EXIT_USAGE, UserError
from neurontools.util.terminal import excerpt

_PRIVATE_MODE = 0o600  # the output has commands and users
_STDOUT = 1


@contextlib.contextmanager
def output_file(path: str) -> Iterator[None]:
    """Redirects standard output to a new file, which replaces the file at `path` atomically at the end.

    Keeps the mode of the replaced file; a new one has mode 0600. An exception leaves the file at `path` unchanged.
    Raises UserError if the path is a link or no regular file, or if the file cannot be written.
    """
    directory_path, name = split_file_path(path)
    with contextlib.ExitStack() as stack:
        with _naming_file(path):
            directory = stack.enter_context(Directory.open(directory_path))
            draft = stack.enter_context(directory.replacing(name, _new_mode(directory, name or ".", path)))
        try:
            with _redirected_stdout(draft):
                yield
        except OutputError as error:
            raise _error(path, f"{error.reason}; free space or name a file elsewhere") from error
        with _naming_file(path):
            stack.close()


@contextlib.contextmanager
def _redirected_stdout(descriptor: int) -> Iterator[None]:
    saved = os.dup(_STDOUT)
    try:
        os.dup2(descriptor, _STDOUT)
        yield
    finally:
        os.dup2(saved, _STDOUT)
        os.close(saved)


@contextlib.contextmanager
def _naming_file(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _error(path, f"{error.strerror}; name a file that can be written") from error


def _new_mode(directory: Directory, name: str, path: str) -> int:
    """Returns the mode of the new file. Raises UserError if it must not replace the entry of this name."""
    try:
        found = os.stat(name, dir_fd=directory.descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return _PRIVATE_MODE
    if not stat.S_ISREG(found.st_mode):
        kind = "is a symbolic link" if stat.S_ISLNK(found.st_mode) else "is not a regular file"
        raise _error(path, f"{kind}; name a regular file or a new one", EXIT_USAGE)
    return stat.S_IMODE(found.st_mode) & 0o777


def _error(path: str, text: str, exit_code: int = EXIT_FAILURE) -> UserError:
    return UserError(f"--output {excerpt(path, 200)}: {text}", exit_code)
