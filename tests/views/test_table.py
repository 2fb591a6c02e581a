from __future__ import annotations

from neurontools.text.table import Column, ascii_table

COLUMNS = (
    Column[tuple[str, str]](("FIRST", "ONE"), lambda row: row[0], once=True),
    Column[tuple[str, str]](("AN ODD", ""), lambda row: row[1]),
)


def test_titles_are_centred_with_the_odd_space_right_and_cells_left() -> None:
    assert ascii_table(COLUMNS, [[("a", "123456789")], [("b", "")]]) == (
        "+-------+-----------+\n"
        "| FIRST |  AN ODD   |\n"
        "|  ONE  |           |\n"
        "+-------+-----------+\n"
        "| a     | 123456789 |\n"
        "| b     |           |\n"
        "+-------+-----------+\n"
    )


def test_a_group_of_several_rows_brings_rules_between_all() -> None:
    assert ascii_table(COLUMNS, [[("a", "1"), ("a", "2")], [("b", "3")]]) == (
        "+-------+--------+\n"
        "| FIRST | AN ODD |\n"
        "|  ONE  |        |\n"
        "+-------+--------+\n"
        "| a     | 1      |\n"
        "|       | 2      |\n"
        "+-------+--------+\n"
        "| b     | 3      |\n"
        "+-------+--------+\n"
    )


def test_wide_characters_take_two_cells() -> None:
    assert "| 神    | 神经元 |\n| b     | 123456 |\n" in ascii_table(COLUMNS, [[("神", "神经元")], [("b", "123456")]])


def test_no_rows() -> None:
    assert ascii_table(COLUMNS[1:], []) == "+--------+\n| AN ODD |\n|        |\n+--------+\n+--------+\n"
