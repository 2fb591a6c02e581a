"""The rows of the list of hosts: hosts, or groups of them that fold."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

from neurontools.fleet.groups import ALIKE, HostGroup, groups, together
from neurontools.fleet.states import HostState

Sort = Callable[[Iterable[HostState]], list[HostState]]


@dataclass(frozen=True, slots=True)
class Listed:
    """A row: a host, or a group told as one host would be."""

    state: HostState
    name: str  # as it is drawn
    group: HostGroup | None = None

    @property
    def key(self) -> str:
        """What is known of it when the list is made anew."""
        return f"{self.group.by}={self.group.value}" if self.group is not None else self.state.place.name


def listed(states: Sequence[HostState], sort: Sort, by: str = "", opened: Container[str] = ()) -> list[Listed]:
    """The rows in order; those of groups first, and below one that is open its hosts.

    `by` is one of `groups.ways`, "" for hosts alone. A host that nobody is like is a row of its own.
    """
    ordered = sort(states)
    if not by:
        return [Listed(state, state.place.name) for state in ordered]
    made = {id(state := together(group)): (state, group) for group in groups(ordered, by)}
    rows: list[Listed] = []
    for told in sort([state for state, _ in made.values()]):
        state, group = made[id(told)]
        if by == ALIKE and len(group.states) == 1:
            rows.append(Listed(group.states[0], group.states[0].place.name))
            continue
        is_open = f"{group.by}={group.value}" in opened
        rows.append(Listed(state, f"{'-' if is_open else '+'} {group.name}", group))
        if is_open:
            rows += [Listed(member, f"  {member.place.name}") for member in group.states]
    return rows
