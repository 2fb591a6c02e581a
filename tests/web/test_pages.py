"""Pages as HTML: tables, links and sort orders, charts, hostile texts; the page of many hosts."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest

from neurontools.fleet.summary import SummaryJob
from neurontools.model import Health, Severity, Snapshot
from neurontools.views.screen import PAGES
from neurontools.web.document import PageFrame, notice_document, page_document
from neurontools.web.nodes import html, node
from neurontools.web.page_query import PageQuery, parse_page_query
from neurontools.web.page_views import FleetView, HostView
from neurontools.web.privacy_filter import PrivacyFilter
from tests.harness.faulty_host import faulty_host
from tests.harness.fleet import StillHosts, live, lost
from tests.harness.full_host import full_host
from tests.harness.html_page import Element, html_tree
from tests.harness.pictures import is_as_stored
from tests.harness.scenario_host import ScenarioHost
from tests.harness.snapshots import host_with_links, snapshot_of
from tests.harness.still_feed import StillFeed

GOLDEN = Path(__file__).parent / "golden"
NASTY = "<img src=x onerror=alert(1)>"
SNAPSHOT = snapshot_of("trn1.2xlarge")


@pytest.fixture(scope="module")
def host() -> HostView:
    """A host with 32 synthetic processes and one minute of history."""
    simulated = ScenarioHost("trn1.32xlarge", "ecc-burst", neuroncores=32)
    view = HostView(
        "/top/",
        lambda: StillFeed([simulated.at(second) for second in range(1, 60, 3)]),
        PrivacyFilter(shows_commands=True, shows_users=True),
    )
    view.start()
    return view


def shown(view: HostView, choice: PageQuery) -> Element:
    title, content = view.draw(choice)
    return html_tree(page_document("/top/", view.frame(choice, title), content, "1").decode())


def rows(page: Element, name: str) -> list[list[str]]:
    """The texts of the table with this name, with its titles."""
    (found,) = page.all("table", **{"aria-label": name})
    return [[cell.text for cell in row.all() if cell.tag in ("th", "td")] for row in found.all("tr")]


@pytest.mark.parametrize("name", [page.name for page in PAGES])
def test_a_page_has_the_landmarks_and_the_key_of_the_terminal(host: HostView, name: str) -> None:
    page = shown(host, PageQuery(name))
    assert "can't be drawn" not in page.text
    assert [len(page.all(tag)) for tag in ("main", "h1")] == [1, 1]
    assert len(page.all("section")) == len(page.all("h2")) >= 1
    keys = {link.attributes["data-key"]: link.text for link in page.all("nav")[0].all("a")}
    assert keys == {each.key: each.title for each in PAGES}
    current = page.all("nav")[0].all("a", **{"aria-current": "page"})
    assert [link.text for link in current] == [each.title for each in PAGES if each.name == name]


def test_each_page_is_as_stored(host: HostView, monkeypatch: pytest.MonkeyPatch) -> None:
    """All elements, texts and addresses: of a small host, a process, a device, 16 devices, and some hosts."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    moments = full_host(1, 59)
    small = HostView("/top/", lambda: StillFeed(moments), PrivacyFilter(shows_commands=True, shows_users=True))
    small.start()
    process = moments[-1].processes[0].pid
    overview = PageQuery("overview")
    title, content = small.draw(overview)
    stored = [page_document("/top/", small.frame(overview, title), content, "1").decode()]
    further = [f"{page.name}?" for page in PAGES[1:]] + [
        "overview?tree=1",
        "processes?filter=nobody",
        f"processes?details={process}",
    ]
    stored += [html(small.draw(parse_page_query(*address.split("?")))[1]) for address in further]
    stored.append(html(host.draw(PageQuery("topology", device=5))[1]))
    faulty = faulty_host()
    sick = HostView("/top/", lambda: StillFeed((faulty,)), PrivacyFilter(), notes=("a note",), above=(("hosts", "/"),))
    sick.start()
    for address in (
        "overview?open=job+synthetic+load+steady",
        "topology?device=12",
        "health?",
        "history?device=1&core=2",
        "heatmap?",
        f"processes?details={faulty.processes[1].pid}",
    ):
        title, content = sick.draw(query := parse_page_query(*address.split("?")))
        stored.append(page_document("/top/", sick.frame(query, title), content, "1").decode().partition("<body")[2])
    empty = HostView("/top/", lambda: StillFeed([host_with_links([])]), PrivacyFilter())
    stored.append(html(empty.draw(PageQuery("topology"))[1]))
    empty.start()
    stored += [html(empty.draw(PageQuery(page.name, filter="colour=red"))[1]) for page in PAGES]
    well = replace(SNAPSHOT, health=Health((0,)))
    for states in ([live("a", well), live("b", faulty), lost("gone", "no route")], [live("a", well)]):
        feed = StillHosts(*(replace(state, received_at_seconds=None) for state in states))
        stored.append(html(FleetView("/top/", feed, lambda _: None, PrivacyFilter()).draw(PageQuery("hosts"))[1]))
    hosts = of_users(shows_users=True, snapshot=moments[-1])
    stored += [html(hosts.draw(PageQuery("hosts", group=group, open="user=ada"))[1]) for group in ("", "user")]
    lines = re.sub(r"(?=<(?:section|tr|li class|figure)\b)", "\n", "\n".join(stored))
    shown = re.sub(r"every 5 s, [0-9:]{8}", "every 5 s, now", lines)
    assert is_as_stored(shown, GOLDEN / "pages.html"), "pages.html differs; look at it, then UPDATE_GOLDEN=1 writes it"


def test_a_column_sorts_by_its_link_and_again_in_the_other_order(host: HostView) -> None:
    page = shown(host, PageQuery("processes"))
    links = {text.removesuffix(" ▲"): link for text, link in page.links()}
    assert links["Utilization"] == "/top/processes?sort=util&descending=1#processes"
    assert links["PID"] == "/top/processes?sort=pid&descending=1#processes"
    assert links["4194306"] == "/top/processes?details=4194306"
    page = shown(host, PageQuery("processes", sort="util", descending=1))
    (title,) = page.all("th", **{"aria-sort": "descending"})
    assert title.links() == [("Utilization ▼", "/top/processes?sort=util#processes")]
    table = rows(page, "Processes")
    at = table[0].index("Utilization ▼")
    values = [float(row[at].removesuffix("%")) for row in table[2:]]
    assert len(values) == 32
    assert values == sorted(values, reverse=True)
    filtered = rows(shown(host, PageQuery("processes", filter="cores=3")), "Processes")
    assert [row[0] for row in filtered[1:]] == ["4194308"]


def test_a_process_that_has_ended_has_a_page(host: HostView) -> None:
    assert "holds no NeuronCores now" in shown(host, PageQuery("processes", details=1)).text


def test_every_text_is_text_in_the_page_and_landmarks_are_there() -> None:
    links = ((NASTY, f"/top/{NASTY}", True),)
    frame = PageFrame(NASTY, ((links[0], ""),), ((NASTY, links, NASTY),), (NASTY, ((NASTY, NASTY),)), (NASTY,))
    content = node("main", node("p", NASTY, title=NASTY), node("p", "a\x1b[2Jb\u202e"), id="page")
    text = page_document("/top/", frame, content, "1").decode()
    assert "<img" not in text
    assert text.count(escape(NASTY)) >= 12
    assert "a\\x1b[2Jb\\u202e" in text
    assert [len(html_tree(text).all(role=role)) for role in ("search", "status")] == [1, 1]


def opened(view: FleetView, choice: PageQuery) -> tuple[Element, Element]:
    """The whole page of hosts, and its table of hosts."""
    title, content = view.draw(choice)
    page = html_tree(page_document("/top/", view.frame(choice, title), content, "1").decode())
    found = page.all("table", **{"aria-label": "Hosts"})
    return page, found[0] if found else page


def choices(page: Element, name: str) -> tuple[list[str], list[str]]:
    """What a reader can choose from, and what is chosen."""
    (found,) = page.all("nav", **{"aria-label": name})
    return [each.text for each in found.all("a")], [each.text for each in found.all(**{"aria-current": "page"})]


def of_users(*, shows_users: bool, snapshot: Snapshot = SNAPSHOT) -> FleetView:
    job = SummaryJob("train", 2, 1, 1, None, None, None, Severity.OK, users=("ada",), user_count=1)
    a, b = (live(name, snapshot, jobs=(job,), job_count=1, further_users=(), user_count=1) for name in "ab")
    feed = StillHosts(*(replace(each, received_at_seconds=None) for each in (a, b)), lost("gone", "no route"))
    return FleetView("/top/", feed, lambda name: f"/run/{name}.sock", PrivacyFilter(shows_users=shows_users))


def test_hosts_that_can_be_reached_are_links() -> None:
    feed = StillHosts(live("a/b c", SNAPSHOT), lost("gone", "no route"))
    view = FleetView("/top/", feed, lambda name: "/run/x.sock" if name == "a/b c" else None, PrivacyFilter())
    page, main = opened(view, PageQuery("hosts"))
    assert page.all("title")[0].text == "2 hosts - neuron-top"
    assert main.links() == [("a/b c", "/top/host/a%2Fb%20c/overview")]
    assert view.pause_seconds == 5.0
    assert opened(FleetView("/top/", feed, lambda _: None, PrivacyFilter()), PageQuery("hosts"))[1].links() == []


def test_a_page_has_500_hosts_and_the_others_are_on_further_ones() -> None:
    view = FleetView(
        "/top/", StillHosts(*(lost(f"host-{number}", "gone") for number in range(1100))), str, PrivacyFilter()
    )
    page, main = opened(view, PageQuery("hosts", sort="by name", first=1000))
    names = [row.all("th")[0].text for row in main.all("tbody")[0].all("tr")]
    assert names == [f"host-{number}" for number in range(1000, 1100)]
    assert choices(page, "Order")[1] == ["by name"]
    assert choices(page, "Hosts") == (["1 to 500", "501 to 1000", "1001 to 1100"], ["1001 to 1100"])
    assert opened(view, PageQuery("hosts", sort="by name"))[1].all("tr")[-1].all("th")[0].text == "host-499"


def test_groups_open_by_their_links_and_whose_a_job_is_is_told() -> None:
    view = of_users(shows_users=True)
    page, main = opened(view, PageQuery("hosts", group="user"))
    assert choices(page, "Group by") == (["none", "alike", "type", "job", "user"], ["user"])
    assert page.all("nav", **{"aria-label": "Group by"})[0].links()[-1] == ("user", "/top/hosts?group=user")
    assert html_tree(notice_document("/top/", "asks", "").decode()).all("h1")[0].text == "asks"
    closed = main.links()
    assert closed == [
        ("+ user unknown, 1 host", "/top/hosts?group=user&open=user%3Duser+unknown#hosts"),
        ("+ ada, 2 hosts", "/top/hosts?group=user&open=user%3Dada#hosts"),
    ]
    assert opened(view, PageQuery("hosts", group="user", open="user=ada"))[1].links() == [
        closed[0],
        ("- ada, 2 hosts", "/top/hosts?group=user#hosts"),
        ("a", "/top/host/a/overview"),
        ("b", "/top/host/b/overview"),
    ]
    found = opened(view, PageQuery("hosts", filter="ada"))[1].links()
    assert [text for text, _ in found] == ["a", "b"], "a filter finds users"
    jobs = rows(opened(view, PageQuery("hosts"))[0], "Jobs")[1:]
    assert [(job[0], job[3]) for job in jobs] == [("train", "ada")] * 2


def test_users_that_are_hidden_are_neither_grouped_nor_found() -> None:
    view = of_users(shows_users=False)
    assert "user" not in choices(opened(view, PageQuery("hosts"))[0], "Group by")[0]
    for choice in (PageQuery("hosts", group="user"), PageQuery("hosts", group="user", open="user=ada")):
        text = opened(view, choice)[1].text
        assert "ada" not in text
        assert "Hosts by" not in text
    assert [text for text, _ in opened(view, PageQuery("hosts", filter="train"))[1].links()] == ["a", "b"]
    assert "No host passes the filter." in opened(view, PageQuery("hosts", filter="ada"))[1].text
