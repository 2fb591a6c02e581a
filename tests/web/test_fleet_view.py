"""The page of many hosts as rows: who is linked, how many are on a page."""

from __future__ import annotations

from collections.abc import Callable

from neurontools.fleet.feed import FleetFeed
from neurontools.fleet.states import HostState
from neurontools.fleet.summary_job import SummaryJob
from neurontools.model import Severity
from neurontools.web.choice import Choice
from neurontools.web.fleet_view import FleetView
from neurontools.web.hiding import Hiding
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
    view = FleetView("/top/", feed, lambda name: "/run/x.sock" if name == "a/b c" else None, Hiding())
    title, rows = view.draw(Choice("hosts", columns=160))
    assert title == "2 hosts - neuron-top"
    assert links(rows) == [("a/b c", "/top/host/a%2Fb%20c/overview?columns=160")]
    assert view.pause_seconds == 5.0
    assert not links(FleetView("/top/", feed, lambda _: None, Hiding()).draw(Choice("hosts"))[1])


def test_a_page_has_500_hosts_and_the_others_are_on_further_ones() -> None:
    hosts = [lost(f"host-{number}", "gone") for number in range(1100)]
    view = FleetView("/top/", StillHosts(*hosts), lambda _: None, Hiding())
    choice = Choice("hosts", sort="by name", first=1000)
    assert shown(view.draw(choice)[1]) == [f"host-{number}" for number in range(1000, 1100)]
    assert shown(view.draw(Choice("hosts", sort="by name"))[1])[-1] == "host-499"
    (_, sorts), _, (name, pages) = view.frame(choice, "").options
    assert [text for text, _, is_chosen in sorts if is_chosen] == ["by name"]
    assert (name, [text for text, _, _ in pages]) == ("Hosts", ["1 to 500", "501 to 1000", "1001 to 1100"])
    assert [is_chosen for _, _, is_chosen in pages] == [False, False, True]


def of_users() -> StillHosts:
    job = SummaryJob("train", 2, 1, 1, None, None, None, Severity.OK, users=("ada",), user_count=1)
    a, b = (live(name, snapshots()[0], jobs=(job,), job_count=1, further_users=(), user_count=1) for name in "ab")
    return StillHosts(a, b, lost("gone", "no route"))


def test_groups_open_by_their_links() -> None:
    view = FleetView("/top/", of_users(), lambda name: f"/run/{name}.sock", Hiding(shows_users=True))
    choice = Choice("hosts", group="user")
    (name, ways) = view.frame(choice, "").options[1]
    assert name == "Group by"
    assert [text for text, _, _ in ways] == ["none", "alike", "type", "job", "user"]
    assert [text for text, _, is_chosen in ways if is_chosen] == ["user"]
    closed = links(view.draw(choice)[1])
    assert closed == [
        ("+ user unknown, 1 host", "/top/hosts?group=user&open=user%3Duser+unknown"),
        ("+ ada, 2 hosts", "/top/hosts?group=user&open=user%3Dada"),
    ]
    opened = links(view.draw(Choice("hosts", group="user", open="user=ada"))[1])
    assert opened == [
        closed[0],
        ("- ada, 2 hosts", "/top/hosts?group=user"),
        ("a", "/top/host/a/overview"),
        ("b", "/top/host/b/overview"),
    ]
    found = links(view.draw(Choice("hosts", filter="ada"))[1])
    assert [text for text, _ in found] == ["a", "b"], "a filter finds users"


def test_whose_a_job_is_is_told_where_users_are_shown() -> None:
    rows = FleetView("/top/", of_users(), lambda name: name, Hiding(shows_users=True)).draw(Choice("hosts"))[1]
    lines = ["".join(text for runs in cells for text, _, _ in runs).split() for _, cells in rows]
    assert [words[1:3] for words in lines if "train" in words] == [["train", "ada"]] * 2


def test_users_that_are_hidden_are_neither_grouped_nor_found() -> None:
    view = FleetView("/top/", of_users(), lambda name: name, Hiding())
    assert "user" not in [text for text, _, _ in view.frame(Choice("hosts"), "").options[1][1]]
    for choice in (Choice("hosts", group="user"), Choice("hosts", group="user", open="user=ada")):
        text = repr(view.draw(choice))
        assert "ada" not in text
        assert "Hosts by" not in text
    assert [text for text, _ in links(view.draw(Choice("hosts", filter="train"))[1])] == ["a", "b"]
    assert links(view.draw(Choice("hosts", filter="ada"))[1]) == []


def shown(rows: tuple[Row, ...]) -> list[str]:
    """The names in the rows of the table."""
    found = ["".join(text for text, _, _ in cells[0]).strip(" -") for kind, cells in rows if kind is Kind.ROW]
    return [name.replace("  ", " ") for name in found if name.startswith("host-")]
