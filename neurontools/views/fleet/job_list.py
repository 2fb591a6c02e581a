"""The jobs of many hosts: a row each, what holds it up in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neurontools.fleet.jobs import FleetJob, FleetStandstill
from neurontools.model import Severity
from neurontools.model.jobs.job_state import JobState
from neurontools.util import units
from neurontools.util.units import ranges_text
from neurontools.views.drawing.glyphs import Glyphs
from neurontools.views.drawing.line import Line, Run, cell, fit, fit_marked, foreign

_LEAST_NAME, _MOST_NAME = 12, 34
_STYLES = {JobState.STUCK: "bad", JobState.COMPILING: "warn", JobState.WAITING: "warn"}


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    width: int
    read: Callable[[FleetJob], str]
    least_width: int = 0
    is_right: bool = True


def _user(job: FleetJob) -> str:
    """Whose it is, or how many users'; with a mark where there may be more."""
    told, count = len(job.users), job.user_count
    if told == 1 and count in (1, None):
        return foreign(job.users[0], 40) + " + ?" * (count is None)
    if count is None:
        return f"{told}+ users" if told else units.UNKNOWN
    return f"{count} user{'s' * (count != 1)}"


def _hosts(job: FleetJob) -> str:
    return units.UNKNOWN if job.host_count is None else str(job.host_count)


def _ranks(job: FleetJob) -> str:
    return str(job.rank_count) if job.world_size in (None, job.rank_count) else f"{job.rank_count}/{job.world_size}"


def _state(job: FleetJob) -> str:
    """What it does, and since when where that is not training."""
    state = foreign(job.state, 12)
    if job.state_seconds is None or job.state == JobState.TRAINING:
        return state
    return f"{state} {units.short_duration_text(job.state_seconds)}"


def _steps(job: FleetJob) -> str:
    return units.UNKNOWN if job.steps_per_second is None else f"{job.steps_per_second:.3g}"


def _step_time(job: FleetJob) -> str:
    return units.UNKNOWN if job.step_seconds is None else units.short_duration_text(job.step_seconds.median)


_COLUMNS = (
    _Column("USER", 10, _user, 120, is_right=False),
    _Column("HOSTS", 5, _hosts),
    _Column("RANKS", 9, _ranks),
    _Column("CORES", 6, lambda job: str(job.neuroncore_count), 90),
    _Column("STEPS/S", 7, _steps),
    _Column("STEP", 7, _step_time, 132),
    _Column("UTIL", 5, lambda job: units.percent_text(job.utilization_ratio, 0), 90),
    _Column("MFU", 5, lambda job: units.percent_text(job.mfu_ratio, 0), 76),
)
_STATE_WIDTH = 16


def worst_jobs_first(jobs: Sequence[FleetJob]) -> list[FleetJob]:
    """Stuck, short of ranks, held up by one; then those that are well, the largest first."""

    def place(job: FleetJob) -> tuple[bool, bool, bool, int]:
        return (
            job.state != JobState.STUCK,
            not job.missing_rank_count,
            job.slow_rank is None and (job.severity or Severity.OK) <= Severity.NOTICE,
            -job.neuroncore_count,
        )

    return sorted(jobs, key=place)


def job_lines(jobs: Sequence[FleetJob], glyphs: Glyphs, width: int, height: int) -> list[Line]:
    """The titles and as many jobs as have room, with how many more there are."""
    shown = list(jobs[: max(0, height - 1)])
    if len(shown) < len(jobs):
        shown = shown[:-1]
    name_width = min(_MOST_NAME, max([_LEAST_NAME, *(len(job.name) for job in shown)]), max(_LEAST_NAME, width // 4))
    columns = [column for column in _COLUMNS if width >= column.least_width]
    titles = f"   {cell('JOB', name_width)}" + "".join(
        f" {cell(column.title, column.width, right=column.is_right)}" for column in columns
    )
    lines = [fit(((f"{titles}  {cell('STATE', _STATE_WIDTH)} HELD UP BY", "column"),), width, "column")]
    lines += [_line(job, glyphs, columns, name_width, width) for job in shown]
    if len(shown) < len(jobs):
        lines.append(fit(((f"   and {len(jobs) - len(shown)} more jobs", "dim"),), width))
    return lines[: max(0, height)]


def _line(job: FleetJob, glyphs: Glyphs, columns: Sequence[_Column], name_width: int, width: int) -> Line:
    is_stuck = job.state == JobState.STUCK
    is_short = is_stuck or bool(job.missing_rank_count) or (job.severity or Severity.OK) >= Severity.WARNING
    mark: Run = (glyphs.bad, "bad") if is_stuck else (glyphs.warn, "warn") if is_short else (glyphs.good, "good")
    runs: list[Run] = [(" ", "text"), mark, (" ", "text"), (cell(foreign(job.name, 80), name_width), "text")]
    runs += [(f" {cell(column.read(job), column.width, right=column.is_right)}", "text") for column in columns]
    state = JobState(job.state) if job.state in tuple(JobState) else JobState.UNKNOWN
    runs.append((f"  {cell(_state(job), _STATE_WIDTH)}", _STYLES.get(state, "text")))
    runs.append((f" {held_up_by(job)}", "warn" if job.missing_rank_count else "text"))
    return fit_marked(runs, width)


def held_up_by(job: FleetJob) -> str:
    """Which ranks are missing, and for whom the others wait, in words; "" where all are there and in step."""
    texts = []
    if job.missing_rank_count:
        texts.append(_missing_text(job))
    if job.standstill is not None:
        texts.append(_standstill_text(job.standstill))
    slow = job.slow_rank
    if slow is not None and job.standstill is None:
        who = f"PID {slow.pid}" if slow.rank is None else f"rank {slow.rank}"
        part = f" ({slow.part})" if slow.part is not None else ""
        gain = units.percent_text(slow.gain_ratio, 0)
        texts.append(f"{who} of {foreign(slow.host_name, 60)}{part}: {gain} of each step")
    return "; ".join(texts)


def _standstill_text(standstill: FleetStandstill) -> str:
    """ "3 ranks wait in all_reduce for rank 3 of host b"."""
    where = foreign(standstill.collective, 32) or "a collective"
    count = standstill.waiting_rank_count
    text = f"{count} rank{'s wait' if count > 1 else ' waits'} in {where}"
    by_host: dict[str, list[int]] = {}
    for each in standstill.absent_ranks:
        by_host.setdefault(each.host_name, []).append(each.rank)
    names = [
        f"rank{'s' * (len(found) > 1)} {ranges_text(found)} of {foreign(host, 60)}" for host, found in by_host.items()
    ]
    more = standstill.absent_rank_count - len(standstill.absent_ranks)
    if more > 0:
        names.append(f"{more} more" if names else f"{more} rank{'s' * (more > 1)}")
    return f"{text} for {', '.join(names)}" if names else f"{text}, and none is absent"


def _missing_text(job: FleetJob) -> str:
    """ "rank 3 of host b is missing"; of many, by host."""
    by_place: dict[tuple[str, bool], list[int]] = {}
    for each in job.missing_ranks:
        by_place.setdefault((each.host_name or "", each.is_host_lost), []).append(each.rank)
    if not by_place:
        count = job.missing_rank_count
        return f"{count} rank{'s' * (count > 1)} missing"
    texts = []
    for (host, is_lost), found in by_place.items():
        of = f" of {foreign(host, 60)}" if host else ""
        texts.append(f"rank{'s' * (len(found) > 1)} {ranges_text(found)}{of}" + " (lost)" * is_lost)
    more = job.missing_rank_count - len(job.missing_ranks)
    verb = "is" if job.missing_rank_count == 1 else "are"
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "") + f" {verb} missing"
