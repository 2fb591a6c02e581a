"""Output of neuron-top without a dashboard: text screens, JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neurontools.cli.top.first_frame import screen_width, write_lines
from neurontools.cli.top.options import check_device_filter, chosen_glyphs, filter_option
from neurontools.client.daemon_client import Client, read_snapshot
from neurontools.model import EndedProcess, Snapshot
from neurontools.util.command_lifecycle import write_stderr, write_text
from neurontools.util.errors import EXIT_FAILURE, UserError
from neurontools.util.units import clock_text
from neurontools.views.drawing.figures import DeviceFilter, Figures
from neurontools.views.drawing.glyphs import ASCII
from neurontools.views.drawing.lines import Line, ascii_only, plain_text
from neurontools.views.drawing.render_context import RenderContext, ShownMoment
from neurontools.views.process_filter import parse_filter
from neurontools.views.process_table import job_key
from neurontools.views.screen import title_bar
from neurontools.views.top_document import TopDocument, top_csv, top_document, top_json

if TYPE_CHECKING:
    from neurontools.client.timeline import HostTimeline

_MOST_LINES = 4000
_PAST_SECONDS = 5.0  # time limit for fetching the daemon's history


@dataclass(slots=True)
class SnapshotSource:
    """Reads snapshots from a recording or a daemon. Records a daemon's snapshots to the file `record_to`, if set.

    `exit_code` is the exit code of the command: 1 after an incomplete recording.
    """

    socket_path: str | None
    recording: str | None
    interval_seconds: float
    record_to: str | None = None
    device_filter: DeviceFilter = DeviceFilter()
    exit_code: int = 0

    def snapshots(self, count: int | None) -> Iterator[Snapshot]:
        """Yields `count` snapshots. None yields a recording's snapshots to its end, or a daemon's endlessly."""
        for number, message in enumerate(self._some_messages(count), 1):
            snapshot = read_snapshot(message)
            if number == 1:
                check_device_filter(self.device_filter, snapshot)
            yield snapshot

    def latest(self) -> Iterator[Snapshot]:
        """Yields one snapshot: the daemon's latest, or the recording's last. Yields none for an empty recording."""
        if self.recording is None:
            yield from self.snapshots(1)
            return
        last = None
        for last in self._messages(once=False):  # noqa: B007
            pass
        if last is not None:
            snapshot = read_snapshot(last)
            check_device_filter(self.device_filter, snapshot)
            yield snapshot

    def document(self, snapshot: Snapshot, filter_text: str) -> TopDocument:
        """Returns the document of a snapshot, restricted to the selected devices and matching processes."""
        part = self.device_filter.filter_snapshot(snapshot)
        return top_document(part, _matching_pids(part, filter_text))

    def ended(self) -> tuple[EndedProcess, ...]:
        """Returns the ended processes from the daemon or the recording. Returns () if the daemon is too old."""
        if self.socket_path is not None:
            try:
                with Client(self.socket_path) as client:
                    return client.ended().processes
            except UserError:
                return ()
        messages = self._messages(once=False)
        found = {ended.identity: ended for message in messages for ended in read_snapshot(message).ended}
        return tuple(found.values())

    def timelines(self, count: int | None) -> Iterator[HostTimeline]:
        """Yields one growing timeline `count` times, each time extended by one snapshot.

        If `count` is None, yields the timeline once: up to the daemon's latest snapshot, or with the whole recording.
        """
        from neurontools.client.backfill import backfill_all
        from neurontools.client.timeline import LIVE_BYTES, HostTimeline, MomentBuilder

        timeline = HostTimeline(LIVE_BYTES if self.recording is None else None)
        maker = MomentBuilder()
        for message in self._some_messages(1 if count is None and self.recording is None else count):
            moment = maker.make(message)
            if moment is None:
                continue
            timeline.append(moment)
            if self.socket_path is not None and len(timeline) == 1:
                past, is_whole = backfill_all(self.socket_path, moment, _PAST_SECONDS)
                timeline.merge(past)
                if not is_whole:
                    since = clock_text(timeline.moments[0].at_unix_seconds)
                    cause = f"the daemon sent only the part since {since} within {_PAST_SECONDS:g} s"
                    write_stderr(f"neuron-top: the past is incomplete: {cause}; try again")
            if count is not None:
                yield timeline
        if count is None and timeline.moments:
            yield timeline

    def _some_messages(self, count: int | None) -> Iterator[bytes]:
        for number, message in enumerate(self._messages(once=count == 1), 1):
            yield message
            if number == count:
                return

    def _messages(self, *, once: bool) -> Iterator[bytes]:
        if self.recording is not None:
            from neurontools.client.recording import RecordingReader

            with closing(RecordingReader(self.recording)) as reader:
                yield from reader.messages()
            if reader.trouble:
                write_stderr(f"neuron-top: {reader.trouble}")
                self.exit_code = EXIT_FAILURE
            return
        assert self.socket_path is not None  # noqa: S101
        with ExitStack() as stack:
            recorder = None
            if self.record_to is not None:
                from neurontools.client.recording import RecordingWriter

                recorder = stack.enter_context(closing(RecordingWriter(self.record_to)))
            client = stack.enter_context(Client(self.socket_path))
            for message in [client.snapshot_message()] if once else client.watch_messages(self.interval_seconds):
                try:
                    if recorder is not None:
                        recorder.write(message)
                except OSError as error:
                    problem = f"--record {self.record_to}: {error.strerror}"
                    raise UserError(f"{problem}; what was recorded until then can be replayed") from error
                yield message


def write_documents(kind: str, source: SnapshotSource, count: int | None, filter_text: str) -> None:
    {"json": _write_json, "json-lines": _write_json_lines, "csv": _write_csv}[kind](source, count, filter_text)


def _matching_pids(snapshot: Snapshot, filter_text: str) -> list[int] | None:
    if not filter_text:
        return None
    passes = parse_filter(filter_text)
    return [pid for pid, figures in Figures(snapshot).by_pid.items() if passes(figures)]


def _write_json(source: SnapshotSource, count: int | None, filter_text: str) -> None:
    if count is None:
        for snapshot in source.latest():
            write_text(top_json(source.document(snapshot, filter_text), indent=2) + "\n")
        return
    separator = "[\n"
    for snapshot in source.snapshots(count):
        write_text(separator + top_json(source.document(snapshot, filter_text)))
        separator = ",\n"
    write_text("\n]\n" if separator == ",\n" else "[]\n")


def _write_json_lines(source: SnapshotSource, count: int | None, filter_text: str) -> None:
    for snapshot in source.snapshots(count):
        write_text(top_json(source.document(snapshot, filter_text)) + "\n")


def _write_csv(source: SnapshotSource, count: int | None, filter_text: str) -> None:
    default = None if source.recording is not None else 1
    header = top_csv(None)
    for snapshot in source.snapshots(count or default):
        write_text(header + top_csv(source.document(snapshot, filter_text)))
        header = ""
    if header and not source.exit_code:  # even an empty recording gives a header
        write_text(header)


def write_screens(given: dict[str, str], source: SnapshotSource, count: int | None) -> None:
    """Prints a page as text, once for each of `count` snapshots. With None, prints only the latest snapshot."""
    for context in _snapshot_contexts(given, source, count, filter_option(given)):
        write_lines(given, _screen_lines(context, screen_width()))


def _snapshot_contexts(
    given: dict[str, str], source: SnapshotSource, count: int | None, filter_text: str
) -> Iterator[RenderContext]:
    """Yields one render context per screen to print, with the timeline if the page shows the past."""
    from neurontools.views.screen import page_named

    page = page_named(given.get("page", "overview"))
    if page.shows_past:
        for timeline in source.timelines(count):
            context = _snapshot_context(timeline.snapshot(-1), given, source.device_filter, filter_text)
            index = len(timeline) - 1
            context.series, context.events = timeline.series(index), timeline.events(index)
            context.clock = ShownMoment(first_at_unix_seconds=timeline.moments[0].at_unix_seconds)
            yield context
        return
    ended = source.ended() if page.name == "usage" else ()
    for snapshot in source.latest() if count is None else source.snapshots(count):
        yield _snapshot_context(snapshot, given, source.device_filter, filter_text, ended or snapshot.ended)


def _snapshot_context(
    snapshot: Snapshot,
    given: dict[str, str],
    device_filter: DeviceFilter,
    filter_text: str,
    ended: tuple[EndedProcess, ...] = (),
) -> RenderContext:
    from neurontools.model import health

    part = device_filter.filter_snapshot(snapshot)
    context = RenderContext.from_snapshot(
        snapshot,
        device_filter,
        glyphs=chosen_glyphs(is_ascii="ascii" in given),
        page=given.get("page", "overview"),
        filter_text=filter_text,
        cursor=-1,
        verdicts=health.verdicts(part),
        ended=device_filter.filter_ended(ended, part),
    )
    if context.page == "processes":  # unfolds all jobs to list every process, as JSON and CSV do
        context.unfolded = frozenset(map(job_key, context.figures.jobs))
    return context


def _screen_lines(context: RenderContext, width: int) -> list[Line]:
    from neurontools.views.screen import page_named

    lines = title_bar(context, width).lines
    height = _MOST_LINES if context.page in ("overview", "processes") else 50
    body = page_named(context.page).draw(context, width, height).lines
    while body and not plain_text(body[-1]):
        body.pop()
    shown = [*lines, *(line for line in body if context.page != "processes" or plain_text(line))]
    return [ascii_only(line) for line in shown] if context.glyphs is ASCII else shown
