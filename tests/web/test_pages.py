"""Pages as HTML: what is a heading, a table, a list; what leads where; what is not read out; many hosts."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from neurontools.fleet.feed import FleetFeed
from neurontools.fleet.states import HostState
from neurontools.fleet.summary import SummaryJob
from neurontools.model import Severity
from neurontools.views.drawing.lines import ClickTarget, Line, TextPage, fit
from neurontools.web.markup import PageFrame, notice_document, page_document, rows_of
from neurontools.web.page_query import PageQuery
from neurontools.web.page_views import FleetView
from neurontools.web.privacy_filter import PrivacyFilter
from tests.harness.fleet import live, lost
from tests.harness.html_page import Element, html_tree
from tests.harness.snapshots import snapshot_of

HEADING: Line = (("─ ", "rule"), ("Jobs", "heading"), (" ", "rule"), ("────", "rule"))
TITLES: Line = (("  ", "column"), ("  PID", "column_sorted"), (" ", "column"), ("TAG  ", "column"), ("   ", "column"))
NASTY = "<img src=x onerror=alert(1)>"
SNAPSHOT = snapshot_of("trn1.2xlarge")


def by_name(target: ClickTarget) -> str:
    return f"/top/{target.action}?{target.argument}"


def shown(page: TextPage, link: Callable[[ClickTarget], str] = by_name) -> Element:
    """The figures of a page, as a browser has them."""
    text = page_document("/top/", PageFrame("title", ()), rows_of(page, link), "1.2", 100).decode()
    (main,) = html_tree(text).all("main", id="screen")
    assert main.attributes | {"class": "c100", "data-version": "1.2"} == main.attributes
    return main


def table() -> TextPage:
    page = TextPage([HEADING, TITLES])
    page.add_list([fit(((f"  {pid:>5} ", "text"), (tag, "dim")), 18) for pid, tag in ((7, "a b"), (81, "c"))], 2, 2, 0)
    page.add_lines(fit((("nothing more", "dim"),), 18))
    return page


def test_a_list_below_titles_is_a_table_whose_cells_are_below_them() -> None:
    main = shown(table())
    (heading,) = main.all("h2")
    read_out = [each.text for each in heading.all("span") if "aria-hidden" not in each.attributes]
    assert (heading.text, read_out) == ("─ Jobs ────", ["Jobs"])
    (found,) = main.all(role="table")
    rows = [[*row.all(role="columnheader"), *row.all(role="cell")] for row in found.all(role="row")]
    assert [[cell.text.strip() for cell in row] for row in rows[:3]] == [["PID", "TAG"], ["7", "a b"], ["81", "c"]]
    assert [len(row[0].text) for row in rows[:3]] == [8, 8, 8], "blanks between cells stay, so that columns do"
    assert "nothing more" in "".join(cell.text for cell in rows[3])
    assert found.links() == [("7", "/top/row?0"), ("81", "/top/row?1")], "a row leads where its first words are"


def test_a_list_without_titles_is_a_list() -> None:
    page = TextPage([HEADING])
    page.add_list([(("one", "text"),), (("two", "text"),)], 2, 2, 0)
    page.add_lines(fit((), 20), (("below", "text"),), fit((), 20))
    main = shown(page)
    (found,) = main.all(role="list")
    assert [each.text for each in found.all(role="listitem")] == ["one", "two"]
    *_, below = main.all("div", **{"class": "l"})
    assert below.text == "below"
    assert below not in found.all()


def test_the_words_of_a_target_are_one_link_whatever_it_spans() -> None:
    line: Line = ((" NC0  ", "text"), ("███·", "busy"), (" [ 93%] ", "text"))
    main = shown(TextPage([line], [ClickTarget(0, 0, 18, "core", "0")]))
    assert main.links() == [("NC0", "/top/core?0")]
    assert main.text == " NC0  ███· [ 93%]"


def test_what_is_only_drawn_is_not_read_out_and_as_wide_as_in_a_terminal() -> None:
    main = shown(TextPage([(("██▉", "busy"), ("···", "track"), (" 80%", "good"), ("日本", "text"))]))
    assert [(each.text, each.attributes) for each in main.all("span")] == [
        ("██▉", {"class": "busy x _3", "aria-hidden": "true"}),
        ("···", {"class": "track x _3", "aria-hidden": "true"}),
        (" 80%", {"class": "good"}),
        ("日本", {"class": "_4"}),
    ]
    assert shown(TextPage([(("a\x1b[2Jb\u202e", "text"),)])).text == "a\\x1b[2Jb\\u202e"


def test_every_text_is_text_in_the_page_and_landmarks_are_there() -> None:
    page = TextPage([((NASTY, "text"), (NASTY, "bad")), ((NASTY, "heading"),)], [ClickTarget(0, 0, 99, "row", "0")])
    links = ((NASTY, f"/top/{NASTY}", True),)
    frame = PageFrame(NASTY, links, ((NASTY, links),), (NASTY, ((NASTY, NASTY),)), (NASTY,), NASTY)
    text = page_document("/top/", frame, rows_of(page, lambda _: f'"{NASTY}'), "1", 120).decode()
    assert "<img" not in text
    assert text.count(escape(NASTY)) >= 12
    assert [len(html_tree(text).all(role=role)) for role in ("search", "status")] == [1, 1]
    frame = PageFrame("title", (("Overview", "/top/overview", True),))
    (link,) = html_tree(page_document("/top/", frame, (), "1", 100).decode()).all("nav")[0].all("a")
    assert (link.text, link.attributes) == ("Overview", {"href": "/top/overview", "aria-current": "page"})


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


def opened(view: FleetView, choice: PageQuery) -> tuple[Element, Element]:
    """The whole page of hosts, and its figures."""
    title, rows = view.draw(choice)
    page = html_tree(page_document("/top/", view.frame(choice, title), rows, "1", 100).decode())
    return page, page.all("main")[0]


def choices(page: Element, name: str) -> tuple[list[str], list[str]]:
    """What a reader can choose from, and what is chosen."""
    (found,) = page.all("nav", **{"aria-label": name})
    return [each.text for each in found.all("a")], [each.text for each in found.all(**{"aria-current": "page"})]


def of_users(*, shows_users: bool) -> FleetView:
    job = SummaryJob("train", 2, 1, 1, None, None, None, Severity.OK, users=("ada",), user_count=1)
    a, b = (live(name, SNAPSHOT, jobs=(job,), job_count=1, further_users=(), user_count=1) for name in "ab")
    feed = StillHosts(a, b, lost("gone", "no route"))
    return FleetView("/top/", feed, lambda name: f"/run/{name}.sock", PrivacyFilter(shows_users=shows_users))


def test_hosts_that_can_be_reached_are_links() -> None:
    feed = StillHosts(live("a/b c", SNAPSHOT), lost("gone", "no route"))
    view = FleetView("/top/", feed, lambda name: "/run/x.sock" if name == "a/b c" else None, PrivacyFilter())
    page, main = opened(view, PageQuery("hosts", columns=160))
    assert page.all("title")[0].text == "2 hosts - neuron-top"
    assert main.links() == [("a/b c", "/top/host/a%2Fb%20c/overview?columns=160")]
    assert view.pause_seconds == 5.0
    assert opened(FleetView("/top/", feed, lambda _: None, PrivacyFilter()), PageQuery("hosts"))[1].links() == []


def test_a_page_has_500_hosts_and_the_others_are_on_further_ones() -> None:
    view = FleetView(
        "/top/", StillHosts(*(lost(f"host-{number}", "gone") for number in range(1100))), str, PrivacyFilter()
    )
    page, main = opened(view, PageQuery("hosts", sort="by name", first=1000))
    assert [name.strip(" -") for name, _ in main.links()] == [f"host-{number}" for number in range(1000, 1100)]
    assert choices(page, "Order")[1] == ["by name"]
    assert choices(page, "Hosts") == (["1 to 500", "501 to 1000", "1001 to 1100"], ["1001 to 1100"])
    assert opened(view, PageQuery("hosts", sort="by name"))[1].links()[-1][0] == "host-499"


def test_groups_open_by_their_links_and_whose_a_job_is_is_told() -> None:
    view = of_users(shows_users=True)
    page, main = opened(view, PageQuery("hosts", group="user"))
    assert choices(page, "Group by") == (["none", "alike", "type", "job", "user"], ["user"])
    assert page.all("nav", **{"aria-label": "Group by"})[0].links()[-1] == ("user", "/top/hosts?group=user")
    assert html_tree(notice_document("/top/", "asks", "").decode()).all("h1")[0].text == "asks"
    closed = main.links()
    assert closed == [
        ("+ user unknown, 1 host", "/top/hosts?group=user&open=user%3Duser+unknown"),
        ("+ ada, 2 hosts", "/top/hosts?group=user&open=user%3Dada"),
    ]
    assert opened(view, PageQuery("hosts", group="user", open="user=ada"))[1].links() == [
        closed[0],
        ("- ada, 2 hosts", "/top/hosts?group=user"),
        ("a", "/top/host/a/overview"),
        ("b", "/top/host/b/overview"),
    ]
    found = opened(view, PageQuery("hosts", filter="ada"))[1].links()
    assert [text for text, _ in found] == ["a", "b"], "a filter finds users"
    rows = [row.text.split() for row in opened(view, PageQuery("hosts"))[1].all(role="row")]
    assert [words[1:3] for words in rows if "train" in words] == [["train", "ada"]] * 2


def test_users_that_are_hidden_are_neither_grouped_nor_found() -> None:
    view = of_users(shows_users=False)
    assert "user" not in choices(opened(view, PageQuery("hosts"))[0], "Group by")[0]
    for choice in (PageQuery("hosts", group="user"), PageQuery("hosts", group="user", open="user=ada")):
        text = opened(view, choice)[1].text
        assert "ada" not in text
        assert "Hosts by" not in text
    assert [text for text, _ in opened(view, PageQuery("hosts", filter="train"))[1].links()] == ["a", "b"]
    assert opened(view, PageQuery("hosts", filter="ada"))[1].links() == []
