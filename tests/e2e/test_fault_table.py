"""docs/faults.md: each kind of fault in each situation against every output, as a simulated host shows it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from neurontools.faults.kinds import KINDS, FaultKind
from tests.harness.fault_host import FaultHost, shown_once, situations
from tests.harness.paths import ROOT
from tests.harness.running_daemon import StartDaemon

pytest.importorskip("torch")
PAGE = ROOT / "docs/faults.md"
BEGIN, END = "<!-- outputs -->\n", "<!-- /outputs -->\n"
COLUMNS = (
    *("kind", "situation", "process", "counters", "/metrics", "kernel line", "neuron-ls --health"),
    *("neuron-healthcheck", "NeuronHealth", "Slurm node"),
)
INJECTABLE = [kind for kind in KINDS.values() if not kind.loses_host]
Row = tuple[str, ...]


def read_rows() -> list[Row]:
    table = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    return [tuple(cell.strip() for cell in line.strip("| ").split(" | ")) for line in lines]


def write_rows(kind: FaultKind, rows: list[Row]) -> None:
    with PAGE.open() as page:
        fcntl.flock(page, fcntl.LOCK_EX)  # each worker of xdist writes the rows of its kinds
        head, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        order = [f"`{name}`" for name in KINDS]
        every = sorted(
            (*(row for row in read_rows() if row[0] != f"`{kind.name}`"), *rows), key=lambda row: order.index(row[0])
        )
        table = "".join(f"| {' | '.join(line)} |\n" for line in (COLUMNS, ("---",) * len(COLUMNS), *every))
        PAGE.write_text(f"{head}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}", "utf-8")


@pytest.fixture
def start_host(start_daemon: StartDaemon, tmp_path: Path) -> Callable[[str], FaultHost]:
    def start(name: str) -> FaultHost:
        (tmp_path / name).mkdir()
        return FaultHost(start_daemon, tmp_path / name)

    return start


@pytest.mark.slow
@pytest.mark.parametrize("kind", INJECTABLE, ids=lambda kind: kind.name)
def test_each_kind_shows_in_each_situation_as_the_table_says(
    start_host: Callable[[str], FaultHost], kind: FaultKind
) -> None:
    """UPDATE_GOLDEN=1 writes all rows of the kind to the page."""
    alike: dict[Row, list[str]] = {}
    for situation, shown in situations(start_host, kind):
        alike.setdefault(shown.cells(), []).append(situation)
    rows = [(f"`{kind.name}`", "; ".join(names), *cells) for cells, names in alike.items()]
    if os.environ.get("UPDATE_GOLDEN"):
        write_rows(kind, rows)
    assert rows == [row for row in read_rows() if row[0] == f"`{kind.name}`"]


def test_a_host_shows_one_kind_after_another_as_the_table_says(start_host: Callable[[str], FaultHost]) -> None:
    host = start_host("host")
    for kind in INJECTABLE:
        situation, shown = shown_once(host, kind)
        rows = [row for row in read_rows() if row[0] == f"`{kind.name}`" and situation in row[1].split("; ")]
        assert [row[2:] for row in rows] == [shown.cells()], kind.name
        host.heal()
