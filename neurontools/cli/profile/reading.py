"""The profiles that a command is about, and what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass

from neurontools.cli.line.telling import tell
from neurontools.profile import Profile
from neurontools.profile.analysis import RunReport, build_report
from neurontools.profile.analysis.report import latest_run
from neurontools.profile.reader import profile_paths, read_profile
from neurontools.util.errors import EXIT_FAILURE, EXIT_NOT_FOUND, UserError
from neurontools.util.terminal import escape_controls
from neurontools.util.units import ranges_text


@dataclass(slots=True)
class Reading:
    """Reads profiles, and tells on standard error what is wrong with some; `exit_code` is that of the command."""

    exit_code: int = 0

    def report(self, where: str, wanted: frozenset[int]) -> RunReport:
        """The report on the latest run in a directory, or on one file; of the ranks that are wanted, or of all.

        A file that can't be read is told and left out; UserError when that leaves none.
        """
        paths = profile_paths(where)
        profiles: list[Profile] = []
        failures: list[UserError] = []
        for path in paths:
            try:
                profiles.append(read_profile(path))
            except UserError as error:
                failures.append(error)
        if not profiles:
            raise failures[0]
        for failure in failures:
            self._tell(str(failure))
        found, profiles = len(profiles), latest_run(profiles)
        if found > len(profiles):
            older = f"{found - len(profiles)} profile(s) of earlier runs are left out; name a file to see that one"
            tell(f"neuron-profile: {escape_controls(where[:200])}: {older}")
        missing = wanted - {each.metadata.rank for each in profiles}
        if missing:
            there = ranges_text(each.metadata.rank for each in profiles)
            told = f"no profile of rank {ranges_text(missing)}; it has those of rank {there}"
            raise UserError(f"{escape_controls(where[:200])}: {told}", EXIT_NOT_FOUND)
        made = build_report([each for each in profiles if not wanted or each.metadata.rank in wanted])
        for rank in made.ranks:
            if rank.incomplete_reason:
                self._tell(
                    f"{escape_controls(where[:200])}: the profile of rank {rank.number} {rank.incomplete_reason}"
                )
        return made

    def _tell(self, text: str) -> None:
        tell(f"neuron-profile: {text}")
        self.exit_code = EXIT_FAILURE
