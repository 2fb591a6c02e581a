"""The page of many hosts as rows: who is linked, how many are on a page."""

from __future__ import annotations

from collections.abc import Callable

from neurontools.fleet.feed import FleetFeed
from neurontools.fleet.states import HostState
from neurontools.web.choice import Choice
from neurontools.web.fleet_view import FleetView
from neurontools.web.rows import Kind, Row
from tests.harness.fleet import live, lost
from tests.harness.still_feed import snapshots


class StillHosts(FleetFeed):
    """Hosts of which nothing new comes."""

    interval_seconds = 5.0
    is_settled = True
    longest_wait_seconds = 0.0

    def __init__(self, *states: HostState) -> None:
        super().__init__()
        self._states = states

    @property
    def states(self) -> tuple[HostState, ...]:
        return self._states

    def socket_path(self, name: str) -> str | None:
        raise AssertionError("a view starts nothing")

    def start(self, notify: Callable[[], None] = lambda: None) -> None:
        pass

    def close(self) -> None:
        pass


def links(rows: tuple[Row, ...]) -> list[tuple[str, str]]:
    """What leads somewhere in the list of hosts, and where."""
    return [(text, address) for _, cells in rows for cell in cells for text, _, address in cell if address]


def test_hosts_that_can_be_reached_are_links() -> None:
    state = live("a/b c", snapshots()[0])
    feed = StillHosts(state, lost("gone", "no route"))
    view = FleetView("/top/", feed, lambda name: "/run/x.sock" if name == "a/b c" else None)
    title, rows = view.draw(Choice("hosts", columns=160))
    assert title == "2 hosts - neuron-top"
    assert links(rows) == [("a/b c", "/top/host/a%2Fb%20c/overview?columns=160")]
    assert view.pause_seconds == 5.0
    assert not links(FleetView("/top/", feed, lambda _: None).draw(Choice("hosts"))[1])


def test_a_page_has_500_hosts_and_the_others_are_on_further_ones() -> None:
    view = FleetView("/top/", StillHosts(*[lost(f"host-{number}", "gone") for number in range(1100)]), lambda _: None)
    choice = Choice("hosts", sort="by name", first=1000)
    assert shown(view.draw(choice)[1]) == [f"host-{number}" for number in range(1000, 1100)]
    assert shown(view.draw(Choice("hosts", sort="by name"))[1])[-1] == "host-499"
    (_, sorts), (name, pages) = view.frame(choice, "").options
    assert [text for text, _, is_chosen in sorts if is_chosen] == ["by name"]
    assert (name, [text for text, _, _ in pages]) == ("Hosts", ["1 to 500", "501 to 1000", "1001 to 1100"])
    assert [is_chosen for _, _, is_chosen in pages] == [False, False, True]


def shown(rows: tuple[Row, ...]) -> list[str]:
    """The names in the rows of the table."""
    found = ["".join(text for text, _, _ in cells[0]).strip(" -") for kind, cells in rows if kind is Kind.ROW]
    return [name.replace("  ", " ") for name in found if name.startswith("host-")]
