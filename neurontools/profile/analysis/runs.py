"""Which profiles of a directory are of one run: several runs may have left theirs in it."""

from __future__ import annotations

from collections.abc import Iterable

from neurontools.profile import Profile


def latest_run(profiles: Iterable[Profile]) -> list[Profile]:
    """The profiles of the run that began last, by rank.

    Those of an earlier run had ended when the last worker of it began. Of a rank that was started again the latest
    counts.
    """
    listed = list(profiles)
    last_ns = max((profile.metadata.began_ns for profile in listed), default=0)
    found: dict[int, Profile] = {}
    for profile in sorted(listed, key=lambda each: each.metadata.began_ns):
        if profile.metadata.began_ns == last_ns or profile.state.ended_ns >= last_ns:
            found[profile.metadata.rank] = profile
    return [found[rank] for rank in sorted(found)]
