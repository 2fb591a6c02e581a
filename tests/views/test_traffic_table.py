"""The table of what goes through the host: no number in it is cut."""

from __future__ import annotations

import pytest

from neurontools.model import Host, RdmaPort
from neurontools.views.drawing.columns import chosen, row_line, title_line
from neurontools.views.drawing.line import plain
from neurontools.views.host.traffic import COLUMNS, traffic_rows

WIDTH = 160


@pytest.mark.parametrize(
    ("count", "text"), [(999_999, "999,999"), (1_000_000, "1.0M"), (12_345_678, "12.3M"), (2**64 - 1, "18.4E")]
)
def test_counts_of_any_size_are_told_whole(count: int, text: str) -> None:
    port = RdmaPort("rdmap0s6", 1, "ACTIVE", dropped_packets_total=count, failed_requests_total=count)
    (row,) = traffic_rows(Host(rdma_ports=(port,)))
    columns = chosen(COLUMNS, WIDTH)
    titles, line = plain(title_line(columns, WIDTH)), plain(row_line(columns, row, WIDTH))
    for title in ("DROPS", "TROUBLE"):
        end = titles.index(title) + len(title)
        assert line[:end].split()[-1] == text
