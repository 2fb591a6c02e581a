"""Lines as rows: what is a heading, a table, a list; what leads where; what is not read out."""

from __future__ import annotations

from neurontools.views.drawing.line import Line, Page, Target, fit
from neurontools.web.markup import Frame, document
from neurontools.web.rows import Kind, Row, rows_of

HEADING: Line = (("─ ", "rule"), ("Jobs", "heading"), (" ", "rule"), ("────", "rule"))
TITLES: Line = (("  ", "column"), ("  PID", "column_sorted"), (" ", "column"), ("TAG  ", "column"), ("   ", "column"))
NASTY = "<img src=x onerror=alert(1)>"


def nowhere(_: Target) -> str:
    return ""


def by_name(target: Target) -> str:
    return f"/top/{target.action}?{target.argument}"


def texts(row: Row) -> list[str]:
    return ["".join(text for text, _, _ in cell) for cell in row[1]]


def table(link: object = nowhere) -> tuple[Row, ...]:
    page = Page([HEADING, TITLES])
    page.add_list([fit(((f"  {pid:>5} ", "text"), (tag, "dim")), 18) for pid, tag in ((7, "a b"), (81, "c"))], 2, 2, 0)
    page.add(fit((("nothing more", "dim"),), 18))
    return rows_of(page, link)  # type: ignore[arg-type]


def test_a_list_below_titles_is_a_table_whose_cells_are_below_them() -> None:
    rows = table()
    assert [kind for kind, _ in rows] == [Kind.HEADING, Kind.COLUMNS, Kind.ROW, Kind.ROW, Kind.ROW]
    assert [[text.strip() for text in texts(row)] for row in rows[1:4]] == [["PID", "TAG"], ["7", "a b"], ["81", "c"]]
    assert [len(texts(row)[0]) for row in rows[1:4]] == [8, 8, 8], "blanks between cells stay, so that columns do"


def test_a_list_without_titles_is_a_list() -> None:
    page = Page([HEADING])
    page.add_list([(("one", "text"),), (("two", "text"),)], 2, 2, 0)
    page.add(fit((), 20), (("below", "text"),), fit((), 20))
    assert [kind for kind, _ in rows_of(page, nowhere)] == [Kind.HEADING, Kind.ITEM, Kind.ITEM, Kind.LINE, Kind.LINE]


def test_the_words_of_a_target_are_a_link() -> None:
    page = Page([((" NC0  ", "text"), ("███·", "busy"), (" [ 93%] ", "text"))], [Target(0, 0, 18, "core", "0")])
    ((_, (cell,)),) = rows_of(page, by_name)
    assert cell[:3] == ((" ", "", ""), ("NC0", "", "/top/core?0"), ("  ", "", ""))
    assert sum(1 for segment in cell if segment[2]) == 1, "one link a target, whatever it spans"


def test_a_row_leads_where_its_first_words_are() -> None:
    row = table(by_name)[2]
    assert [segment for cell in row[1] for segment in cell if segment[2]] == [("7", "", "/top/row?0")]


def test_what_is_only_drawn_is_not_read_out_and_as_wide_as_in_a_terminal() -> None:
    ((_, (cell,)),) = rows_of(Page([(("██▉", "busy"), ("···", "track"), (" 80%", "good"), ("日本", "text"))]), nowhere)
    assert cell == (("██▉", "busy x _3", ""), ("···", "track x _3", ""), (" 80%", "good", ""), ("日本", "_4", ""))


def test_control_characters_are_made_visible() -> None:
    ((_, (cell,)),) = rows_of(Page([(("a\x1b[2Jb\u202e", "text"),)]), nowhere)
    assert cell[0][0] == "a\\x1b[2Jb\\u202e"


def test_every_text_is_text_in_the_page() -> None:
    page = Page([((NASTY, "text"), (NASTY, "bad")), ((NASTY, "heading"),)], [Target(0, 0, 99, "row", "0")])
    links = ((NASTY, f"/top/{NASTY}", True),)
    frame = Frame(NASTY, links, ((NASTY, links),), (NASTY, ((NASTY, NASTY),)), (NASTY,), NASTY)
    text = document("/top/", frame, rows_of(page, lambda _: f'"{NASTY}'), "1", 120).decode()
    assert "<img" not in text
    assert text.count("&lt;img src=x onerror=alert(1)&gt;") >= 12


def test_a_page_has_headings_tables_and_landmarks() -> None:
    frame = Frame("title", (("Overview", "/top/overview", True),))
    text = document("/top/", frame, table(by_name), "1.2", 100).decode()
    assert '<h2 class="l">' in text
    assert text.count('role="table"') == 1
    assert text.count('role="row"') == 4
    assert text.count('role="columnheader"') == 2
    assert '<main id="screen" class="c100" data-version="1.2">' in text
    assert '<a href="/top/overview" aria-current="page">Overview</a>' in text
