"""Hosts from the answers of a Prometheus, and what else answers where one should."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Mapping
from contextlib import closing
from math import prod
from pathlib import Path

import pytest

from neurontools.fleet.device_conditions import CONDITION_BASE, DEVICE_DIGITS
from neurontools.fleet.jobs import FleetJob, SlowFleetRank, StepSeconds
from neurontools.fleet.models import FleetModel
from neurontools.fleet.prometheus.overview import QueryTime, read_host_states, read_job_count, read_jobs, read_models
from neurontools.fleet.prometheus.queries import JOB_STATES, OverviewQueries, PackedField, PackedQuery
from neurontools.fleet.prometheus.server import (
    PrometheusAccess,
    PrometheusAnswer,
    PrometheusProblem,
    PrometheusSample,
    PrometheusServer,
    read_prometheus_access,
)
from neurontools.fleet.states import HostLink, HostState
from neurontools.model import Severity, SourceKind
from neurontools.util.errors import UserError
from tests.harness.answering_server import ReceivedRequest, Reply, answering
from tests.harness.pictures import is_as_stored
from tests.harness.secret_file import write_secret
from tests.harness.tls_server import plain_server
from tests.harness.waiting import HANG_SECONDS

ASKED = OverviewQueries()
NOW = QueryTime(1000.0, 1.7e9)


def sample(value: float, instance: str = "a:8000", **labels: str) -> PrometheusSample:
    return PrometheusSample({"instance": instance, **labels}, value)


def of(before: Mapping[str, HostState] | None = None, **answers: tuple[PrometheusSample, ...]) -> dict[str, HostState]:
    return {state.place.name: state for state in read_host_states(ASKED, answers, before or {}, NOW)}


def packed(packed: PackedQuery, **values: int | None) -> float:
    """The sample that a Prometheus makes of these."""
    number = 0
    for part in packed.parts:
        value = values.pop(part.name, None)
        number = number * part.base + (part.unknown if value is None else value)
    assert not values
    return float(number)


def test_several_numbers_are_read_from_one_sample() -> None:
    asked = PackedQuery(
        PackedField("cores", 1000, "c"), PackedField("held", 1000, "h"), PackedField("ratio", 10_000, "r")
    )
    assert asked.read(128_032_0500) == {"cores": 128, "held": 32, "ratio": 500}
    assert asked.read(999_000_9999) == {"cores": None, "held": 0, "ratio": None}
    assert PackedQuery(PackedField("a", 600, "a"), PackedField("b", 100, "b")).read(598 * 100 + 7) == {"a": 598, "b": 7}
    for none in (float("nan"), float("inf"), -1.0, 2.0**60):
        assert asked.read(none) == {"cores": None, "held": None, "ratio": None}


@pytest.mark.parametrize("parts", [ASKED.counts, ASKED.states])
def test_what_is_packed_is_held_exactly(parts: PackedQuery) -> None:
    assert prod(part.base for part in parts.parts) < 2**53
    assert CONDITION_BASE**DEVICE_DIGITS < 2**53


def test_the_queries_are_as_stored() -> None:
    """A real Prometheus answers them in tests/e2e."""
    other = OverviewQueries(are_jobs_recorded=True, are_users_wanted=True)
    lines = [f"{name}: {text}" for name, text in (*ASKED.texts.items(), *other.texts.items())]
    shown = "\n".join(dict.fromkeys(lines)) + "\n"
    path = Path(__file__).parent / "golden/queries.txt"
    assert is_as_stored(shown, path), "queries.txt differs; UPDATE_GOLDEN=1 writes it anew"


def test_an_instance_without_a_name_or_an_age_is_no_host() -> None:
    assert of(identity=(sample(float("nan")), sample(1.0, ""), sample(float("inf"), "b"))) == {}


def test_a_host_that_only_answers_is_live_and_all_else_unknown() -> None:
    state = of(identity=(sample(7.0),))["a:8000"]
    found = state.summary
    assert found is not None
    assert (state.link, state.received_at_seconds, state.severity) == (HostLink.LIVE, 993.0, None)
    unknown = (found.neuroncore_count, found.held_neuroncore_count, found.free_neuroncore_count, found.job_count)
    assert unknown == (None,) * 4
    assert (found.utilization_ratio, found.mfu_ratio, state.steps_per_second, found.source) == (None,) * 4
    assert (found.devices, found.findings, found.is_judged) == ((), (), False)


def test_all_of_a_host() -> None:
    counts = {"neuroncore_count": 4, "held_neuroncore_count": 2, "busy_neuroncore_count": 1, "free_neuroncore_count": 2}
    counts |= {"job_count": 0, "problem_count": 3}
    finding = {"finding": "stuck", "severity": "critical", "neuron_devices": "1,3-4", "reason": "stands\x1b[2J still"}
    state = of(
        identity=(sample(1.0, instance_type="trn1.2xlarge", instance_id="i-simulated", node="one"),),
        counts=(sample(packed(ASKED.counts, **counts)),),
        states=(sample(packed(ASKED.states, utilization=500, mfu=250, severity=3, critical=1)),),
        devices=(sample(8 + 9 * 2 + 81 * 3 + 729 * 5 + 6561 * 0 + 59049 * 1),),
        rates=(sample(2.5, of="steps"), sample(40.0, of="requests")),
        findings=(sample(60.0, **finding), sample(90.0, **(finding | {"severity": "warning", "reason": "hot"}))),
        clocks=(sample(3600.0),),
    )["one"]
    found = state.summary
    assert found is not None
    assert (state.place.text, state.clock_ahead_seconds, state.severity) == ("ssh:one", 3600.0, Severity.CRITICAL)
    assert (found.source, found.utilization_ratio, found.mfu_ratio) == (SourceKind.SIMULATED, 0.5, 0.25)
    assert {name: getattr(found, name) for name in counts} == counts
    assert (found.unknown_neuroncore_count, state.steps_per_second, found.requests_per_second) == (0, 2.5, 40.0)
    assert [finding.severity for finding in found.findings] == [Severity.CRITICAL, Severity.WARNING]
    assert found.findings[0].device_indices == (1, 3, 4)
    assert "\x1b" not in found.findings[0].reason
    assert [
        (cell.index, cell.severity, cell.utilization_ratio, cell.held_neuroncore_count) for cell in found.devices
    ] == [
        (0, Severity.CRITICAL, None, None),
        (1, Severity.OK, None, 0),
        (2, Severity.OK, 0.0, None),
        (3, Severity.OK, 0.667, None),
        (5, Severity.OK, None, None),
    ]


def test_users_come_with_the_counts_where_they_are_asked_for() -> None:
    assert "user" not in " ".join(ASKED.texts.values())
    asked = OverviewQueries(are_users_wanted=True)
    assert asked.texts.keys() == ASKED.texts.keys(), "they are no further query"
    busy, idle = (
        packed(ASKED.counts, neuroncore_count=4, held_neuroncore_count=held, job_count=held) for held in (2, 0)
    )
    counts = (
        sample(busy, user="eve"),
        sample(busy, user="\x1b[2Jada"),
        sample(busy, uid="1000"),
        sample(busy, "b:8000", user="bob"),
        sample(idle, "c:8000"),
        *(sample(busy, "d:8000", user=user) for user in ("bob", "")),
    )
    found = of(identity=tuple(sample(1.0, f"{name}:8000") for name in "abcd"), counts=counts)
    a, b, c, d = (summary for state in found.values() if (summary := state.summary) is not None)
    assert [summary.held_neuroncore_count for summary in (a, b, c)] == [2, 2, 0], "and each host has its counts once"
    assert (a.user_count, b.users, b.user_count, c.users, c.user_count) == (3, ("bob",), 1, (), None)
    assert (d.users, d.user_count) == (("bob",), None), "of another process of d the user is unknown"
    assert a.users == ("1000", *sorted(user for user in a.users if user != "1000"))
    assert "\x1b" not in "".join(a.users)


def test_one_that_was_not_read_for_long_is_lost() -> None:
    ages = (sample(600.0, "old:1"), sample(15.0, "b:1"), sample(20.0, "c:1"))
    found = of(identity=ages)
    assert (found["old:1"].link, found["old:1"].loss_reason) == (
        HostLink.LOST,
        "Prometheus has not read it for 10 m 0 s",
    )
    assert found["b:1"].link is found["c:1"].link is HostLink.LIVE
    assert all(
        state.link is HostLink.LIVE for state in of(identity=(sample(300.0, "a:1"), sample(290.0, "b:1"))).values()
    )


def test_a_host_with_an_old_snapshot_is_lost_though_prometheus_reads_it() -> None:
    found = of(
        identity=(sample(10.0, "frozen:1"), sample(10.0, "slow:1"), sample(10.0, "ahead:1")),
        clocks=(sample(-600.0, "frozen:1"), sample(-20.0, "slow:1"), sample(90.0, "ahead:1")),
    )
    reason = "its neurond answers with a snapshot that is 10 m 10 s old"
    assert (found["frozen:1"].link, found["frozen:1"].loss_reason) == (HostLink.LOST, reason)
    assert found["slow:1"].link is found["ahead:1"].link is HostLink.LIVE
    ages = {name: state.age_seconds(NOW.seconds) for name, state in found.items()}
    assert ages == {"ahead:1": 10.0, "slow:1": 30.0, "frozen:1": 610.0}
    assert [found[name].clock_ahead_seconds for name in ("ahead:1", "slow:1", "frozen:1")] == [90.0, 0.0, 0.0]


def test_lost_ones_keep_what_was_known_of_them() -> None:
    before = of(identity=(sample(1.0, instance_type="trn1.2xlarge"), sample(1.0, "b:8000")))
    found = of(before, identity=(), lost=(sample(40.0, link="down"), sample(90.0, "b:8000", link="gone")))
    assert found["a:8000"].loss_reason == "it does not answer Prometheus"
    assert found["a:8000"].summary == before["a:8000"].summary
    assert found["a:8000"].age_seconds(NOW.seconds) == 40.0
    assert found["b:8000"].loss_reason == "Prometheus no longer asks it"
    never = of(identity=(), lost=(sample(-1.0, link="down"),))["a:8000"]
    assert (never.summary, never.age_seconds(NOW.seconds)) == (None, None)
    dead = (sample(40.0, "a:1", node="trn-0005", link="down"), sample(40.0, "b:1", node="moved", link="gone"))
    places = {
        name: found.place.text for name, found in of(identity=(sample(1.0, "c:1", node="moved"),), lost=dead).items()
    }
    assert places == {"trn-0005": "ssh:trn-0005", "b:1": "ssh:b", "moved": "ssh:moved"}


def test_hosts_are_called_by_their_node_where_that_is_one() -> None:
    places = {"[::1]:8000": {}, "b:1": {"node": "twice"}, "c:1": {"node": "twice"}, "d:1": {"node": "d"}}
    found = of(identity=tuple(sample(1, instance, **labels) for instance, labels in places.items()))
    addresses = {name: state.place.address for name, state in found.items()}
    assert addresses == {"[::1]:8000": "::1", "b:1": "b", "c:1": "c", "d": "d"}


def test_jobs_have_what_their_samples_tell() -> None:
    run = {"run_id": "0123456789ab", "job_name": "torchrun exp\x1b"}
    values = {"ranks": 6.0, "neuroncores": 12.0, "hosts": 2.0, "world_size": 8.0, "severity": 2.0, "step_seconds": 0.5}
    values |= {"state": float(JOB_STATES.index("training")), "since_step": 3.0, "steps_per_second": 2.0, "mfu": 0.25}
    values |= {"requests_per_second": 7.0, "request_p99": 0.125}
    local = {"ranks": 1.0, "neuroncores": 1.0, "state": 99.0, "severity": 99.0, "hosts": float("nan"), "mfu": -1.0}
    samples = [sample(value, of=name, **run) for name, value in values.items()]
    samples += [sample(value, of=name, job_name="alone") for name, value in local.items()]
    samples += [sample(0.2, of="slow_rank", rank="5", **run), sample(3.0, of="ranks", job_name="begins")]
    found = read_jobs((*samples, sample(9.0, of="jobs")), {"a:8000": "one"})
    whole = FleetJob(
        *("torchrun exp\\x1b", "0123456789ab", (), 2, 12, 6, 8, (), "training", 3.0, None, 2.0, 0.25),
        step_seconds=StepSeconds(None, 0.5, None),
        slow_rank=SlowFleetRank(5, "one", None, None, 0.1, 0.2),
        standstill=None,
        severity=Severity.WARNING,
        requests_per_second=7.0,
        request_p99_seconds=0.125,
    )
    nothing = (None, None, None, None, None, None, None)
    assert found == (whole, FleetJob("alone", None, ("one",), 1, 1, 1, None, (), "unknown", None, *nothing))
    assert [read_job_count((sample(value, of="jobs"),)) for value in (9.0, -1.0, 2.0**31)] == [9, 0, 0]
    assert read_job_count(()) == 0


def test_models_have_what_their_samples_tell() -> None:
    values = {"neuroncores": 2.0, "requests_per_second": 7.0, "request_p99_seconds": 0.125, "queue_depth": 3.0}
    values |= {"queue_wait_seconds": 0.25, "device_memory_bytes": 4096.0, "hosts": 5.0}
    samples = [sample(1.0, of="neuroncores", model="b"), sample(float("nan"), of="hosts", model="b"), sample(1.0)]
    samples += [sample(value, of=name, model="a\x1b") for name, value in values.items()]
    assert read_models(samples) == (
        FleetModel("a\\x1b", 2, 7.0, 0.125, 3, 0.25, 4096, 5),
        FleetModel("b", 1, None, None, None, None, None, 1),
    )


VECTOR = {"resultType": "vector", "result": [{"metric": {"instance": "a"}, "value": [1.5, "2"]}]}
NONE = "it is not a Prometheus"
MATRIX = b'{"status": "success", "data": {"resultType": "matrix", "result": []}}'
GOOD = json.dumps({"status": "success", "data": VECTOR}).encode()
ASK_SECONDS = HANG_SECONDS


def redirection(to: str) -> Reply:
    return Reply(b"", 307, {"Location": to})


def answers(url: str, times: int = 1) -> list[PrometheusAnswer]:
    """What the server answers to one question after the other on one connection."""
    with closing(PrometheusServer(url, PrometheusAccess())) as server:
        return [server.query("up", ASK_SECONDS) for _ in range(times)]


def problem(url: str, seconds: float = ASK_SECONDS) -> str:
    with closing(PrometheusServer(url, PrometheusAccess())) as server, pytest.raises(PrometheusProblem) as raised:
        server.query("up", seconds)
    return str(raised.value)


def test_an_answer_below_a_path_on_a_connection_that_is_kept() -> None:
    packed = Reply(gzip.compress(GOOD), headers={"Content-Encoding": "gzip"})
    with answering(packed) as (url, asked):
        server = PrometheusServer(f"{url}/prometheus/", PrometheusAccess(tenant="team"))
        for _ in range(2):
            answer = server.query("sum(up)", ASK_SECONDS)
            assert [(dict(each.labels), each.value) for each in answer.samples] == [({"instance": "a"}, 2.0)]
            assert answer.size_bytes == len(packed.body)
        server.close()
    assert {(each.method, each.path) for each in asked} == {("POST", "/prometheus/api/v1/query")}
    assert asked[0].headers["X-Scope-OrgID"] == "team"
    assert b"query=sum%28up%29" in asked[0].body
    assert asked[0].connection == asked[1].connection


def test_one_that_wants_get_is_asked_so() -> None:
    def reply(asked: ReceivedRequest) -> Reply:
        return Reply(status=405) if asked.method == "POST" else Reply(GOOD)

    with answering(reply) as (url, asked):
        answers(url, 2)
    assert [each.method for each in asked] == ["POST", "GET", "GET"]


def test_a_redirection_within_the_server_is_followed() -> None:
    def reply(asked: ReceivedRequest) -> Reply:
        return Reply(GOOD) if asked.path == "/there/query" else redirection("/there/query")

    with answering(reply) as (url, _):
        assert answers(url)[0].samples


def test_a_connection_that_was_closed_meanwhile_is_made_again() -> None:
    with answering(Reply(GOOD, headers={"Connection": "close"})) as (url, asked):
        answers(url, 2)
    assert asked[0].connection != asked[1].connection


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"warnings": ["store s3 is away"]}, ("store s3 is away",)),
        ({"isPartial": True}, ("partial answer",)),
        ({"warnings": ["x\x1b[2J"]}, ("x\\x1b[2J",)),
        ({"isPartial": False, "warnings": None}, ()),
    ],
)
def test_partial_answers_say_so(document: dict[str, object], told: tuple[str, ...]) -> None:
    with answering(Reply(json.dumps({"status": "success", "data": VECTOR, **document}).encode())) as (url, _):
        assert answers(url)[0].warnings == told


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (Reply(b"<html>", headers={"Content-Type": "text/html; charset=utf-8"}), f"{NONE}: status 200 with text/html"),
        (Reply(b"no", 404), "is the path right?"),
        *((Reply(body), NONE) for body in (b"[]", MATRIX, GOOD.replace(b'"2"', b"2"), GOOD.replace(b'"a"', b"[]"))),
        *((Reply(body), NONE) for body in (b"[" * 200_000, b"\xff\xfe")),
        (Reply(b"no org id\n", 401), "it wants credentials or a tenant (status 401); name them in --prometheus-config"),
        (Reply(b"", 403), "it refuses these credentials (status 403)"),
        (Reply(b'{"status":"error","error":"query timed out"}', 503), "query timed out (status 503)"),
        (Reply(b'{"status":"error","error":"many \\u001b[2J samples"}', 422), "many \\x1b[2J samples (status 422)"),
        (Reply(b"no gzip", headers={"Content-Encoding": "gzip"}), "its answer cannot be decompressed"),
        (redirection("http://192.0.2.1/login"), "it redirects to http://192.0.2.1/login, which is not followed"),
        (redirection("/again"), "its redirects form a loop"),
        (redirection("http://[x"), "it redirects to"),
    ],
)
def test_what_is_no_answer(reply: Reply, cause: str) -> None:
    with answering(reply) as (url, _):
        told = problem(url)
    assert cause in told
    assert "\n" not in told
    assert "\x1b" not in told


def test_an_answer_without_end_is_not_read() -> None:
    bomb = gzip.compress(b" " * (33 * 2**20), 9)
    with answering(Reply(bomb, headers={"Content-Encoding": "gzip"})) as (url, _):
        assert problem(url) == "its answer is larger than 32 MiB"


def test_one_that_says_nothing_or_no_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert problem(url, 0.2) == "no answer within 0.2 s"
    assert problem(url) == "not reached: connection refused"
    with plain_server(b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        assert "not HTTP" in problem(f"http://127.0.0.1:{port}")


def test_addresses_that_cannot_be_meant() -> None:
    causes = dict.fromkeys(("prometheus:9090", "ftp://a", "http://", "http://a/?q=1"), "is not an address")
    causes |= {"http://a:99999": "give an address", "http://me:secret@a": "can be read by all users"}
    for url, cause in causes.items():
        with pytest.raises(UserError, match=f"--prometheus.*{cause}") as raised:
            PrometheusServer(url, PrometheusAccess())
        assert "secret" not in str(raised.value)


def test_credentials_come_from_files_and_are_not_sent_in_clear(tmp_path: Path) -> None:
    write_secret(tmp_path / "token", "s3cret")
    write_secret(tmp_path / "password", "pass")
    file = tmp_path / "access.toml"
    file.write_text(f'bearer_token_file = "{tmp_path}/token"\n')
    bearer = read_prometheus_access(str(file))
    with pytest.raises(UserError, match="not sent over plain http"):
        PrometheusServer("http://prometheus.example:9090", bearer)
    with answering(Reply(GOOD)) as (url, asked):
        for token in ("s3cret", "renewed"):
            write_secret(tmp_path / "token", token)
            with closing(PrometheusServer(url, bearer)) as server:
                server.query("up", ASK_SECONDS)
        file.write_text(f'basic_user = "me"\nbasic_password_file = "{tmp_path}/password"\n')
        with closing(PrometheusServer(url, read_prometheus_access(str(file)))) as server:
            server.query("up", ASK_SECONDS)
    (tmp_path / "password").chmod(0o644)
    with pytest.raises(UserError, match="holds a secret and has the mode 0644; take it away from others"):
        read_prometheus_access(str(file))
    assert [each.headers["Authorization"] for each in asked] == [
        "Bearer s3cret",
        "Bearer renewed",
        "Basic bWU6cGFzcw==",
    ]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('token = "x"', "'token' is not known; there are tenant, bearer_token_file"),
        ("tenant = 3", "tenant is no text in quotes"),
        ('tenant = "a\\nb"', "is not one line of ASCII"),
        ("= no", "is no TOML"),
        ('basic_user = "me"', "go together"),
        ('tls_key = "k"', "tls_key needs tls_certificate"),
        ('bearer_token_file = "/nowhere"', "bearer_token_file: /nowhere: No such file"),
        ('tls_ca = "/nowhere"', "tls_ca: /nowhere: No such file"),
    ],
)
def test_files_that_cannot_be_meant(tmp_path: Path, text: str, cause: str) -> None:
    file = tmp_path / "access.toml"
    file.write_text(text)
    with pytest.raises(UserError) as raised:
        read_prometheus_access(str(file))
    assert str(raised.value).startswith(f"--prometheus-config {file}: ")
    assert cause in str(raised.value)
    assert "\n" not in str(raised.value)
