"""`neuron-ls --ended`: what the monitor daemon knows of processes that have ended. It may import more."""

from __future__ import annotations

import time

from neurontools.cli.line.options import exclude_each_other
from neurontools.cli.ls.scripts import ASKING
from neurontools.client.daemon_client import Client
from neurontools.model import EndedProcess
from neurontools.util.errors import EXIT_NO_DAEMON, EXIT_USAGE, UserError
from neurontools.util.terminal import error_excerpt
from neurontools.views.ls_reports import EndedReport, ended_csv, ended_json, ended_text
from neurontools.views.query_fields import parse_format

_NOT_WITH = (*ASKING, "loop", "count", "topology", "device", "show-all-procs")
_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_LONGEST_SECONDS = 100 * 365 * 86_400.0


class EndedQuery:
    """One question after what has ended; `answer` is asked with the socket of a daemon."""

    exit_code = 0
    interval_seconds: float | None = None  # at which a daemon of its own would have to look

    def __init__(self, given: dict[str, str]) -> None:
        for name in ("user", "since"):
            if name in given and "ended" not in given:
                raise UserError(f"--{name} is for --ended; leave it out", EXIT_USAGE)
        for other in _NOT_WITH:
            exclude_each_other(given, "ended", other)
        exclude_each_other(given, "json-output", "format")
        self._is_wide = "wide" in given
        self._is_json = "json-output" in given
        self._format = parse_format(given["format"]) if "format" in given else None
        self._user = given.get("user")
        self._age_seconds = age_seconds(given["since"]) if "since" in given else None

    def answer(self, path: str) -> str:
        """What goes to standard output."""
        asked_since = 0.0 if self._age_seconds is None else max(0.0, time.time() - self._age_seconds)
        with Client(path) as client:
            ended = client.ended(asked_since)
        since = max(asked_since, ended.known_since_unix_seconds)
        chosen = [process for process in ended.processes if self._is_asked_for(process)]
        report = EndedReport(chosen, since, self._user)
        if self._is_json or (self._format is not None and self._format.is_json):
            return ended_json(report)
        if self._format is not None:
            return ended_csv(report, self._format)
        return ended_text(report, is_wide=self._is_wide)

    def answer_from_devices(self) -> str | None:
        """Devices alone tell nothing of what has ended."""
        raise UserError(
            "--ended: no monitor daemon answers, and it alone knows what has ended; start neurond before the jobs",
            EXIT_NO_DAEMON,
        )

    def _is_asked_for(self, process: EndedProcess) -> bool:
        return self._user is None or self._user in (process.user, str(process.uid))


def age_seconds(text: str) -> float:
    """An age: a number and s, m, h, d or w; seconds without a unit. UserError for anything else."""
    digits, unit_seconds = (text[:-1], _UNIT_SECONDS[text[-1]]) if text[-1:] in _UNIT_SECONDS else (text, 1.0)
    try:
        seconds = float(digits) * unit_seconds if digits.isascii() and len(digits) <= 20 else -1.0
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST_SECONDS:  # NaN fails too
        shown = error_excerpt(text)
        raise UserError(f"--since: {shown} is no time; give one such as 90s, 30m, 12h or 1d", EXIT_USAGE)
    return seconds
