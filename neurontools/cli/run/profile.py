"""The profile that neuron-run asks its workers for."""

from __future__ import annotations

from pathlib import Path

from neurontools.errors import EXIT_USAGE, UserError
from neurontools.nrt.environment import INSPECT_ENABLE, INSPECT_OUTPUT_DIRECTORY, PROFILE_STEPS
from neurontools.nrt.profile_steps import NoSteps, steps_of


def ask_for(given: dict[str, str], environment: dict[str, str]) -> None:
    """Sets the variables that say what is to be profiled, and where to; UserError for what can't be meant."""
    if "profile" not in given:
        if "profile-steps" in given:
            raise UserError("--profile-steps is for a profile; add --profile DIR", EXIT_USAGE)
        return
    environment[INSPECT_ENABLE] = "1"
    environment[INSPECT_OUTPUT_DIRECTORY] = str(Path(given["profile"]).absolute())
    environment.pop(PROFILE_STEPS, None)
    if "profile-steps" in given:
        try:
            steps_of(given["profile-steps"])
        except NoSteps as error:
            raise UserError(f"--profile-steps {error}", EXIT_USAGE) from None
        environment[PROFILE_STEPS] = given["profile-steps"]
