"""Documents and pages of a host of which everything is known."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neurontools.driver.processes import ProcessContext, ProcessTreeEntry
from neurontools.model import health
from neurontools.util.process_text import HIDDEN
from neurontools.views.device_list import device_list_json, device_list_table
from neurontools.views.drawing.render_context import ProcessCost, RenderContext
from neurontools.views.host_difference import RecordingSide, host_difference_json, host_difference_text
from neurontools.views.ls_reports import (
    EndedReport,
    ended_csv,
    ended_json,
    ended_text,
    health_json,
    health_text,
    loop_header,
    loop_rows,
)
from neurontools.views.process_table import EVERY_COLUMN
from neurontools.views.query_fields import FIELDS, OutputFormat, field_help, query_rows, query_text
from neurontools.views.recording_summary import recording_summary_json, recording_summary_text
from neurontools.views.screen import page_named
from neurontools.views.top_document import top_csv, top_document, top_json
from neurontools.views.topology_picture import topology_picture
from tests.harness.document_lines import document_lines
from tests.harness.faulty_host import faulty_host
from tests.harness.full_host import full_host
from tests.harness.pictures import is_as_stored, rounded, screen_rows
from tests.harness.snapshots import snapshot_of

GOLDEN = Path(__file__).parent / "golden/full_host.txt"
BEFORE, NOW = full_host()
FAULTY = faulty_host()
PEAK = 95e12
PID = NOW.processes[0].pid
TREE = (ProcessTreeEntry(0, 7, "slurmd"), ProcessTreeEntry(1, PID, "python train.py"), ProcessTreeEntry(2, 9, "loader"))
VARIABLES = (("NEURON_RT_VISIBLE_CORES", "0"), ("TOKEN", HIDDEN), ("A" * 40, "b" * 120))


@pytest.fixture(autouse=True)
def _fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def drawn(page: str, width: int, height: int, **choices: Any) -> Iterator[str]:
    context = RenderContext.from_snapshot(
        NOW,
        page=page,
        ended=NOW.ended,
        verdicts=tuple(health.verdicts(NOW)),
        own_cost=ProcessCost(0.01, 40 << 20),
        vcpus=(NOW.host.vcpu_average,) * 4,
        **choices,
    )
    yield page
    yield from screen_rows(page_named(page).draw(context, width, height))


def test_documents_are_as_stored() -> None:
    fields = list(FIELDS.values())
    rows = query_rows(NOW, PEAK, None, (), of_cores=True)
    verdicts, ended = health.verdicts(NOW), EndedReport(NOW.ended, NOW.taken_at_unix_seconds - 86400, None)
    document = top_document(NOW)
    about = field_help().splitlines()[-len(fields) :]
    cells = csv.reader(query_text(fields, rows, OutputFormat()).splitlines())
    a, b = RecordingSide("a"), RecordingSide("b", moment_count=3)
    a.add_snapshot(BEFORE)
    for snapshot in (BEFORE, NOW):
        b.add_snapshot(snapshot)
    faulty = RecordingSide("faulty")
    faulty.add_snapshot(FAULTY)
    texts = (
        "".join(f"{line} | {' | '.join(values)}\n" for line, *values in zip(about, *cells, strict=True)),
        ended_csv(ended, OutputFormat()),
        top_csv(None) + top_csv(document),
        loop_header(NOW) + loop_rows(query_rows(NOW, PEAK, None, (), of_cores=False)),
        health_text(verdicts, NOW),
        ended_text(ended),
        device_list_table(NOW, wide=True, all_processes=True),
        *(topology_picture(snapshot_of(name)) for name in ("inf2.24xlarge", "inf2.48xlarge", "trn3e.24xlarge")),
        host_difference_text(a, b),
        host_difference_text(b, faulty).partition("ND 2 ")[0],
        health_text(health.verdicts(FAULTY), FAULTY),
        query_text(fields, query_rows(FAULTY, PEAK, None, (), of_cores=True)[:4], OutputFormat(has_units=False)),
        recording_summary_text(b),
    )
    documents = {
        "query": query_text(fields, rows, OutputFormat(is_json=True)),
        "health": health_json(verdicts, NOW),
        "ended": ended_json(ended),
        "devices": device_list_json(NOW),
        "top": top_json(document),
        "difference": host_difference_json(a, b),
        "summary": recording_summary_json(b),
    }
    lines = [line.rstrip() for text in texts for line in text.splitlines()]
    lines += [line for name, text in documents.items() for line in document_lines(json.loads(text), name)]
    document = json.loads(rounded(json.loads(top_json(top_document(FAULTY)))))
    lines += [line for name in ("jobs", "processes") for line in document_lines(document.get(name, []), name)]
    for page in (
        drawn("processes", 320, 4, columns=tuple(column.key for column in EVERY_COLUMN)),
        drawn("processes", 140, 60, details_pid=PID),
        drawn("processes", 140, 40, details_pid=PID, is_time_shown=True),
        drawn("processes", 110, 12, details_pid=PID, process_context=ProcessContext(PID, "", VARIABLES, TREE)),
        drawn("processes", 110, 6, details_pid=PID, process_context=ProcessContext(PID, "it has ended")),
        drawn("processes", 110, 8, process_forest=TREE),
        drawn("overview", 160, 14),
        drawn("usage", 160, 24, cursor=1),
        *(drawn(name, 160, 24) for name in ("host", "health")),
    ):
        lines += page
    assert is_as_stored("\n".join(lines) + "\n", GOLDEN), "full_host.txt differs; UPDATE_GOLDEN=1 writes it anew"
