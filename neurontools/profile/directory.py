"""The profiles of a run: the files that its workers left in a directory."""

from __future__ import annotations

import os
from pathlib import Path

from neurontools.profile.chunks import SUFFIX
from neurontools.profile.profile import Profile
from neurontools.profile.reader import read_profile
from neurontools.util.errors import EXIT_NOT_FOUND, EXIT_PERMISSION, UserError
from neurontools.util.terminal import escape_controls

_MOST_WORKERS = 4096


def profile_paths(where: str | os.PathLike[str]) -> list[Path]:
    """The files of workers in a directory, or the file itself. UserError in one line where there are none."""
    path = Path(where)
    name = escape_controls(os.fspath(where))
    if path.is_file():
        return [path]
    try:
        found = sorted(each for each in path.iterdir() if each.name.endswith(SUFFIX) and each.name[0] != ".")
    except PermissionError:
        raise UserError(f"{name}: not permitted; ask its owner for read access", EXIT_PERMISSION) from None
    except OSError as error:
        raise UserError(
            f"{name}: {error.strerror}; give a directory that neuron-run --profile wrote", EXIT_NOT_FOUND
        ) from None
    if not found:
        raise UserError(
            f"{name}: no profile in it; make one with neuron-run --profile {name} script.py", EXIT_NOT_FOUND
        )
    if len(found) > _MOST_WORKERS:
        raise UserError(f"{name}: {len(found)} profiles are more than {_MOST_WORKERS}; give one of them")
    return found


def read_directory(where: str | os.PathLike[str]) -> list[Profile]:
    """The profiles of all workers, by rank; of a single file, that one. UserError in one line for anything else."""
    profiles = [read_profile(path) for path in profile_paths(where)]
    return sorted(profiles, key=lambda each: (each.metadata.rank, each.metadata.host, each.metadata.pid))
