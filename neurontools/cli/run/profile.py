"""The profile that neuron-run asks its workers for."""

from __future__ import annotations

import time
from pathlib import Path

from neurontools.cli.line.telling import tell
from neurontools.driver.environment import INSPECT_ENABLE, INSPECT_OUTPUT_DIRECTORY, PROFILE_RUN, PROFILE_STEPS
from neurontools.driver.neuron_runtime import InvalidProfileSteps, parse_profile_steps
from neurontools.util.errors import EXIT_USAGE, UserError

_MOST_SIDE_BY_SIDE = 16  # workers: what viewers can hold


def ask_for(given: dict[str, str], environment: dict[str, str]) -> None:
    """Sets the variables that say what is to be profiled, and where to; UserError for what can't be meant."""
    if "profile" not in given:
        if "profile-steps" in given:
            raise UserError("--profile-steps is for a profile; add --profile DIR", EXIT_USAGE)
        return
    environment[INSPECT_ENABLE] = "1"
    environment[PROFILE_RUN] = time.strftime("%Y_%m_%d_%H_%M_%S")  # names of this form sort by time
    environment[INSPECT_OUTPUT_DIRECTORY] = str(Path(given["profile"]).absolute())
    environment.pop(PROFILE_STEPS, None)
    if "profile-steps" in given:
        try:
            parse_profile_steps(given["profile-steps"])
        except InvalidProfileSteps as error:
            raise UserError(f"--profile-steps {error}", EXIT_USAGE) from None
        environment[PROFILE_STEPS] = given["profile-steps"]


def complete(environment: dict[str, str], began_ns: int) -> None:
    """Writes the files for viewers of the workers that died before they could, and a trace of several side by side.

    A line tells what fails.
    """
    if PROFILE_RUN not in environment:
        return
    from neurontools.profile.formats.outputs import has_outputs, write_outputs, write_ranks
    from neurontools.profile.reader import profile_paths, read_profile

    directory = Path(environment[INSPECT_OUTPUT_DIRECTORY])
    try:
        paths = [path for path in profile_paths(directory) if path.stat().st_mtime_ns >= began_ns]
    except (OSError, UserError):  # its workers have said why there is none
        return
    profiles = []
    try:
        for path in paths[:_MOST_SIDE_BY_SIDE]:
            profile = read_profile(path)
            profiles.append(profile)
            if not profile.state.has_ended and not has_outputs(profile.metadata, directory):
                write_outputs(profile, directory, environment[PROFILE_RUN])
                tell(f"neuron-run: profile: {path}: its worker died; it has what was there until a second before")
        if len(profiles) > 1:
            write_ranks(sorted(profiles, key=lambda each: each.metadata.rank), directory)
    except (OSError, UserError) as error:
        cause = f"{directory}: {error.strerror}" if isinstance(error, OSError) else error
        tell(f"neuron-run: profile: {cause}")
