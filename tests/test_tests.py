"""How the tests themselves are laid out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.harness.paths import ROOT

FILES = sorted((ROOT / "tests").rglob("*.py"))


def imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_tests_share_through_the_harness_alone() -> None:
    sharing = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in FILES
        for name in imported(file.read_text())
        if name.split(".")[0] == "tests" and name.split(".")[:2] != ["tests", "harness"]
    }
    assert sharing == set()
