"""`python -m campaign` runs the trials and prints a table; see docs/reliability.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from campaign import adversity, clients, floods, fuzz, interrupts, ownership, programs
from campaign.outcome import Outcome, table

Trial = Callable[[float, Random, Path], Outcome | list[Outcome]]

# The trials, each with its relative share of the time.
TRIALS: dict[str, tuple[Trial, float]] = {
    "kills": (ownership.kills, 4),
    "restarts": (ownership.restarts, 3),
    "ends": (ownership.ends, 1),
    "clients": (clients.clients, 2),
    "interrupts": (interrupts.interrupts, 4),
    "programs": (programs.programs, 2),
    "floods": (floods.floods, 5),
    "wire": (fuzz.wire, 1),
    "recordings": (fuzz.recordings, 1),
    "configurations": (fuzz.configurations, 1),
    "flags": (fuzz.flags, 2),
    "trees": (fuzz.driver_trees, 1),
    "disk": (adversity.full_disk, 1),
    "clock": (adversity.clock_jumps, 1),
    "soak": (adversity.soak, 2),
}
_BEGIN, _END = "<!-- campaign -->\n", "<!-- /campaign -->"


def main(arguments: list[str]) -> int:
    """Runs the chosen trials. Returns 1 when one failed."""
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long all of them take together")
    parser.add_argument("--seed", type=int, default=None, help="of what is chosen at random; told at the beginning")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this document too")
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=f"only these: {', '.join(TRIALS)}")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.trials if name not in TRIALS]
    if unknown:
        parser.error(f"there is no trial {unknown[0]!r}; there are {', '.join(TRIALS)}")
    seed = int(time.time()) if given.seed is None else given.seed
    chosen = {name: TRIALS[name] for name in given.trials or TRIALS}
    unit_seconds = 60 * given.minutes / sum(share for _, share in chosen.values())
    print(f"seed {seed}, {given.minutes:g} minutes", flush=True)
    outcomes: list[Outcome] = []
    for name, (trial, share) in chosen.items():
        with tempfile.TemporaryDirectory(prefix=f"campaign-{name}-") as directory:
            made = trial(unit_seconds * share, Random(f"{seed} {name}"), Path(directory))
        for outcome in made if isinstance(made, list) else [made]:
            outcomes.append(outcome)
            print(f"{outcome.name}: {outcome.rounds} rounds, {len(outcome.failures)} failures", flush=True)
            for failure in outcome.failures[:10]:
                print(f"    {failure}", flush=True)
    print(f"\n{table(outcomes)}")
    if given.write:
        text = given.write.read_text("utf-8")
        head, _, rest = text.partition(_BEGIN)
        tail = rest.partition(_END)[2]
        when = time.strftime("%Y-%m-%d")
        given.write.write_text(
            f"{head}{_BEGIN}{when}, seed {seed}, {given.minutes:g} minutes:\n\n{table(outcomes)}\n{_END}{tail}", "utf-8"
        )
    return int(any(outcome.failures for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
