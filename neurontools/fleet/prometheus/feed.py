"""A feed of the hosts that Prometheus knows; it queries Prometheus at an interval in its own thread.

A refresh takes at most ten queries, whatever the number of hosts. If a query fails, its values are unknown, and a note
says so. If Prometheus cannot be reached at all, the feed keeps the old values.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from neurontools.fleet.feed import DirectFeed, FleetFeed
from neurontools.fleet.jobs import FleetJob
from neurontools.fleet.models import FleetModel
from neurontools.fleet.prometheus.overview import QueryTime, read_host_states, read_job_count, read_jobs, read_models
from neurontools.fleet.prometheus.queries import MEANINGS, MOST_JOBS, PROBE, OverviewQueries
from neurontools.fleet.prometheus.server import (
    PrometheusAccess,
    PrometheusAnswer,
    PrometheusProblem,
    PrometheusSample,
    PrometheusServer,
    PrometheusUnreachable,
)
from neurontools.fleet.states import HostState, deduplicate_hosts
from neurontools.util.errors import UserError

USUAL_INTERVAL_SECONDS = 15.0  # the usual scrape interval of Prometheus
_QUERY_SECONDS = 20.0
_WHOLE_SECONDS = 60.0
_PROBED_FOR_SECONDS = 300.0
_MOST_NOTES = 4
_STOP_SECONDS, _REACH_SECONDS = 2.0, 20.0


class PrometheusFeed(FleetFeed):
    """Collects the states of hosts from Prometheus. Raises UserError for an invalid address or credentials."""

    def __init__(self, url: str, access: PrometheusAccess | None = None, interval_seconds: float | None = None) -> None:
        super().__init__()
        self.interval_seconds = USUAL_INTERVAL_SECONDS if interval_seconds is None else max(1.0, interval_seconds)
        self._server = PrometheusServer(url, access or PrometheusAccess())
        self._states: tuple[HostState, ...] = ()
        self._jobs: tuple[FleetJob, ...] = ()
        self._models: tuple[FleetModel, ...] = ()
        self._notes: tuple[str, ...] = ()
        self._is_settled = False
        self.are_jobs_recorded = False  # whether Prometheus has our recording rules for jobs, as of the latest probe
        self._probed_at = float("-inf")
        self._is_closing = threading.Event()
        self._is_urgent = threading.Event()  # set to request a refresh before the interval is over
        self._thread: threading.Thread | None = None
        self._connected_feeds: dict[str, DirectFeed] = {}
        self.query_texts: dict[str, str] = {}  # queries of the latest refresh, by name
        self._counted = [0, 0]  # number of queries and of bytes in the current refresh
        self.query_count = 0  # number of queries in the latest complete refresh
        self.answered_bytes = 0  # bytes received in the latest complete refresh

    @property
    def states(self) -> tuple[HostState, ...]:
        """The state of each host, sorted by address."""
        return self._states

    @property
    def jobs(self) -> tuple[FleetJob, ...]:
        """The jobs that are stuck, incomplete or largest; empty while the jobs are unknown."""
        return self._jobs

    @property
    def models(self) -> tuple[FleetModel, ...]:
        """The served models with the most device memory; empty while the models are unknown."""
        return self._models

    @property
    def notes(self) -> tuple[str, ...]:
        return self._notes

    @property
    def is_settled(self) -> bool:
        """Whether Prometheus has answered or failed."""
        return self._is_settled

    @property
    def longest_wait_seconds(self) -> float:
        return _WHOLE_SECONDS + _QUERY_SECONDS

    def socket_path(self, name: str) -> str | None:
        """Returns the local socket to the daemon of a host. None unless `connect_host` has connected to the host."""
        feed = self._connected_feeds.get(name)
        return None if feed is None else feed.socket_path(name)

    def connect_host(self, name: str) -> str | None:
        """Connects to a host by SSH and returns the local socket; None if the connection fails."""
        feed = self._connected_feeds.get(name)
        if feed is None:
            place = next((state.place for state in self._states if state.place.name == name), None)
            if place is None:
                return None
            feed = self._connected_feeds[name] = DirectFeed((place,))
            feed.start()
        feed.wait_settled(_REACH_SECONDS)
        return feed.socket_path(name)

    def request_users(self) -> None:
        """Also queries the users of jobs from now on, which adds one sample for each user of each host."""
        is_news = not self._are_users_wanted
        super().request_users()
        if is_news and self._thread is not None:
            self._is_urgent.set()

    def start(self, notify: Callable[[], None] = lambda: None) -> None:
        self._notify = notify
        self._thread = threading.Thread(target=self._run, name="prometheus", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closing.set()
        self._is_urgent.set()
        self._server.interrupt()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)
        for feed in self._connected_feeds.values():
            feed.close()
        self._connected_feeds.clear()

    def _run(self) -> None:
        try:
            while not self._is_closing.is_set():
                began = time.monotonic()
                self._refresh()
                self.query_count, self.answered_bytes = self._counted
                self._is_settled = True
                self._notify()
                self._is_urgent.wait(max(0.0, self.interval_seconds - (time.monotonic() - began)))
                self._is_urgent.clear()
        finally:
            self._server.close()

    def _refresh(self) -> None:
        """Runs all queries once and stores the results."""
        deadline = time.monotonic() + _WHOLE_SECONDS
        notes: dict[str, None] = {}
        answers: dict[str, tuple[PrometheusSample, ...]] = {}
        self._counted = [0, 0]
        try:
            self._probe(deadline, notes)
            overview_queries = OverviewQueries(
                are_jobs_recorded=self.are_jobs_recorded,
                are_users_wanted=self._are_users_wanted,
            )
            self.query_texts = overview_queries.texts
            for name, text in overview_queries.texts.items():
                try:
                    answer = self._query(text, deadline)
                except PrometheusUnreachable:
                    raise
                except PrometheusProblem as problem:
                    if name == "identity":
                        raise
                    notes[f"Prometheus did not return {MEANINGS[name]}: {problem}"] = None
                    continue
                notes |= dict.fromkeys(f"Prometheus answers partially: {line}" for line in answer.warnings)
                answers[name] = answer.samples
        except (PrometheusProblem, UserError) as problem:
            self._notes = (f"Prometheus: {problem}",)
            return
        before = {state.place.name: state for state in self._states}
        self._states, same = deduplicate_hosts(
            read_host_states(overview_queries, answers, before, QueryTime(time.monotonic(), time.time()))
        )
        notes |= dict.fromkeys(same)
        job_results = answers.get("jobs", ())
        names = {state.summary.host_name: state.place.name for state in self._states if state.summary is not None}
        self._jobs, count = read_jobs(job_results, names), read_job_count(job_results)
        self._models = read_models(answers.get("rates", ()))
        if count > MOST_JOBS:
            notes[f"of {count} jobs the {MOST_JOBS} that are worst or largest are shown"] = None
        if not self._states:
            notes["Prometheus has no series of neurond; has it been told to scrape the hosts? See FLEET.md"] = None
        self._notes = tuple(notes)[:_MOST_NOTES]

    def _probe(self, deadline: float, notes: dict[str, None]) -> None:
        """Checks whether Prometheus has our recording rules, unless the last check was recent."""
        if time.monotonic() < self._probed_at + _PROBED_FOR_SECONDS:
            return
        try:
            answer = self._query(PROBE, deadline)
        except PrometheusUnreachable:
            raise
        except PrometheusProblem as problem:
            notes[f"Prometheus did not say whether it records our rules: {problem}"] = None
            return
        self.are_jobs_recorded = any(sample.value > 0 for sample in answer.samples)
        self._probed_at = time.monotonic()

    def _query(self, text: str, deadline: float) -> PrometheusAnswer:
        left = deadline - time.monotonic()
        if left < 1 or self._is_closing.is_set():
            raise PrometheusUnreachable(f"its answers take longer than {_WHOLE_SECONDS:.0f} s")
        self._counted[0] += 1
        answer = self._server.query(text, min(_QUERY_SECONDS, left))
        self._counted[1] += answer.size_bytes
        return answer
