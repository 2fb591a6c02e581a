"""The tools of neuron-mcp: the documents of the commands, bounded, without what is hidden, and of no other files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neurontools.cli.mcp import tools
from neurontools.cli.mcp.host_access import HostAccess
from neurontools.util.errors import UserError
from neurontools.util.terminal import escape_controls
from neurontools.web.privacy_filter import PrivacyFilter
from tests.harness.command import calls
from tests.harness.counted_runs import summary
from tests.harness.paths import ROOT
from tests.harness.profiles import write
from tests.harness.running_daemon import RunningDaemon, StartDaemon
from tests.harness.trained_profiles import trained

SHOWN = PrivacyFilter(shows_commands=True, shows_users=True)


def access_to(daemon: RunningDaemon, directory: Path | None = None, hiding: PrivacyFilter = SHOWN) -> HostAccess:
    return HostAccess(daemon.socket, {}, None if directory is None else str(directory), hiding)


def ask(access: HostAccess, name: str, **arguments: object) -> Any:
    return json.loads(tools.answer(tools.BY_NAME[name], access, arguments).document)


@pytest.fixture
def steady(start_daemon: StartDaemon) -> RunningDaemon:
    """A busy host whose snapshot stays the same during the test."""
    return start_daemon("--simulate", "trn1.32xlarge", "--load", "steady", "--interval", "600")


def test_answers_are_the_documents_of_the_commands(steady: RunningDaemon) -> None:
    def command(*line: str) -> Any:
        return json.loads(calls(line[0], os.environ)(*line[1:], "--socket", steady.socket).stdout)

    access = access_to(steady)
    whole = command("neuron-top", "--json")
    assert ask(access, "list_problems") == command("neuron-ls", "--health", "--json")
    assert ask(access, "list_ended") == command("neuron-ls", "--ended", "--json")
    for name in ("list_devices", "list_jobs"):
        found = ask(access, name)
        assert found == {key: whole[key] for key in found}
    assert len(ask(access, "list_devices")["devices"]) == 16
    processes = ask(access, "list_processes", limit=1000)["processes"]
    assert len(processes) == len(whole["processes"]) > 1
    assert processes[0].items() <= whole["processes"][0].items()
    pid = processes[-1]["pid"]
    assert ask(access, "show_process", pid=pid)["processes"] == [whole["processes"][-1]]
    assert [each["pid"] for each in ask(access, "list_processes", filter=f"pid={pid}")["processes"]] == [pid]
    few = ask(access, "list_devices", devices=[3, 5])
    assert [device["neuron_device"] for device in few["devices"]] == [3, 5]
    assert {core["neuron_device"] for core in few["neuroncores"]} == {3, 5}
    history = ask(access, "get_history", quantity="memory_bytes", device_index=3, minutes=1)
    assert history["latest"] == pytest.approx(few["devices"][0]["memory_used_bytes"], rel=1e-5)
    assert history["points"][-1]["value"] == history["highest"] == history["latest"]
    (host,) = ask(access, "list_hosts")["hosts"]
    assert (host["instance_type"], host["held_neuroncore_count"]) == ("trn1.32xlarge", 32)
    assert ask(access, "find_free_cores", count=2)["neuron_rt_visible_cores"] is None


def argument_text(schema: dict[str, Any], *, required: bool) -> str:
    limits = {"maxLength": 400} if schema["type"] == "string" else {"maxItems": 64} if "items" in schema else {}
    assert limits.items() <= schema.items(), "the page has these limits in a sentence"
    numbers = schema.get("items", schema)
    parts = [f"from {numbers['minimum']} to {numbers['maximum']}"] if "minimum" in numbers else []
    parts += [f"default {json.dumps(schema['default'])}"] if "default" in schema else ["required"] if required else []
    parts += [f"one of {', '.join(schema['enum'])}"] if "enum" in schema else []
    return ", ".join([f"list of {numbers['type']}s" if "items" in schema else schema["type"], *parts])


def arguments_table() -> str:
    """The table of docs/agents.md: the arguments of each tool as the client gets them."""
    rows = ["| tool | arguments |", "|---|---|"]
    for tool in tools.TOOLS:
        schema = tool.input_schema
        assert schema["additionalProperties"] is False
        texts = [
            f"`{name}` ({argument_text(value, required=name in schema['required'])})"
            for name, value in schema["properties"].items()
        ]
        rows.append(f"| `{tool.name}` | {'; '.join(texts)} |")
    return "\n".join(rows) + "\n"


def test_the_document_has_the_arguments_of_each_tool() -> None:
    page = ROOT / "docs/agents.md"
    before, begin, after = page.read_text("utf-8").partition("| tool | arguments |")
    table, end, after = after.partition("\n\n")
    if "UPDATE_GOLDEN" in os.environ:
        page.write_text(before + arguments_table().rstrip() + end + after, "utf-8")
    else:
        assert f"{begin}{table}\n" == arguments_table(), "docs/agents.md differs; UPDATE_GOLDEN=1 writes it anew"


def test_a_finding_is_explained_with_what_it_concerns(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--simulate", "trn1.32xlarge", "--load", "steady", "--interval", "0.1")
    calls("neuron-fault", os.environ)("inject", "hbm-uncorrectable", "--device", "3", "--socket", daemon.socket)
    daemon.next_snapshot()
    access = access_to(daemon)
    for name in ("ecc_uncorrected", "HBM_UNCORRECTABLE_ERROR"):
        found = ask(access, "explain_finding", kind=name)
        assert [(each["name"], each["problem"], each["injected"]) for each in found["findings"]] == [
            ("HBM_UNCORRECTABLE_ERROR", "node", True)
        ]
        assert [device["neuron_device"] for device in found["devices"]] == [3]
    with pytest.raises(UserError, match="no finding hang on this host; it has: ecc_uncorrected"):
        ask(access, "explain_finding", kind="hang")
    assert ask(access, "find_free_cores", count=1)["free_neuroncore_count"] == 0


def test_hidden_commands_and_users_are_in_no_answer(steady: RunningDaemon) -> None:
    whole, hidden = access_to(steady), access_to(steady, hiding=PrivacyFilter())
    process = ask(whole, "list_processes")["processes"][0]
    assert process["command"]
    assert process["user"]
    for name in ("list_processes", "list_devices", "list_jobs", "list_hosts", "list_ended", "list_problems"):
        text = json.dumps(ask(hidden, name))
        assert process["command"] not in text
        assert f'"{process["user"]}"' not in text
    assert ask(hidden, "list_processes", filter=f"user={process['user']}")["processes"] == []
    with pytest.raises(UserError, match="users are hidden here"):
        ask(hidden, "list_ended", user=process["user"])


REFUSED = [
    ("list_devices", {"x\x1b[2J": 1}, "has no argument"),
    ("list_devices", {"devices": [1024]}, "whole numbers from 0 to 1023"),
    ("list_devices", {"devices": [99]}, "no device 99 on this host"),
    ("list_devices", {"devices": list(range(65))}, "at most 64"),
    ("list_devices", {"devices": "3"}, "give a list"),
    ("list_devices", {"host": "trn1"}, "this server shows one host"),
    ("list_processes", {"limit": 0}, "from 1 to 1000"),
    ("list_processes", {"limit": True}, "whole number"),
    ("list_processes", {"filter": "user="}, "needs a value"),
    ("list_processes", {"filter": "x" * 401}, "1 to 400 characters"),
    ("list_processes", {"filter": "(" * 400}, "nested parentheses"),
    ("show_process", {}, "pid None: give a whole number from 1"),
    ("show_process", {"pid": 10**400}, "give a whole number"),
    ("get_history", {"quantity": "colour\x9b"}, "one of utilization_ratio"),
    ("get_history", {"quantity": "flops_per_second", "minutes": float("nan")}, "a number from 0.1"),
    ("get_history", {"quantity": "latency_p99_seconds", "neuroncore": 1}, "give pid"),
    ("get_history", {"quantity": "memory_bytes", "neuroncore": 3, "device_index": 0}, "no NeuronCore 3"),
    ("list_ended", {"since": "yesterday"}, "is no time"),
    ("find_free_cores", {"count": 33}, "will never be free"),
    ("list_hosts", {"only_problems": "yes"}, "true or false"),
    ("estimate_run", {"path": "run.json", "instance_types": "p5.48xlarge"}, "p5.48xlarge"),
    ("estimate_run", {"path": "run.json", "instance_types": "/etc/passwd"}, "passwd"),
    ("estimate_run", {"path": "other.json", "instance_types": "all"}, "no summary of neuron-run"),
    ("summarize_profile", {"path": "prof", "rank": 7}, "no profile of rank 7; it has those of rank 0"),
    ("summarize_profile", {"path": "run.json"}, "not a profile"),
    *[
        (name, {"path": path, "instance_types": "all"} if name == "estimate_run" else {"path": path}, words)
        for name in ("summarize_profile", "estimate_run")
        for path, words in (
            ("/etc/passwd", "not a path below"),
            ("../run.json", "not a path below"),
            ("prof/../run.json", "not a path below"),
            ("prof\0/x", "1 to 400 characters"),
            ("a/" * 150 + "x", "not a path below"),
            ("outside", "symbolic links"),
            ("link/run.json", "choose another"),
            ("pipe", "no"),
            ("none\x1b]0;x\x07", "No such file"),
        )
    ],
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a profile, a summary, and ways out of it."""
    directory, beside = tmp_path_factory.mktemp("readable"), tmp_path_factory.mktemp("beside")
    for place in (directory, beside):
        (place / "prof").mkdir()
        write(place / "prof/0.neuronprofile", trained(1)[0])
        (place / "run.json").write_text(json.dumps({"steps_total": 10, **summary()}))
    (directory / "other.json").write_text("[" * 100_000)
    (directory / "outside").symlink_to(beside / "run.json")
    (directory / "link").symlink_to(beside)
    os.mkfifo(directory / "pipe")
    return directory


@pytest.mark.parametrize(("name", "arguments", "words"), REFUSED)
def test_invalid_arguments_and_paths_outside_are_refused_in_one_line(
    shared_daemon: RunningDaemon, files: Path, name: str, arguments: dict[str, object], words: str
) -> None:
    with pytest.raises(UserError) as caught:
        tools.answer(tools.BY_NAME[name], access_to(shared_daemon, files), arguments)
    assert words in str(caught.value)
    assert escape_controls(str(caught.value)) == str(caught.value)
    assert len(str(caught.value)) < 600


def test_profiles_and_estimates_are_read_below_the_directory(shared_daemon: RunningDaemon, files: Path) -> None:
    access = access_to(shared_daemon, files)
    shown = json.loads(calls("neuron-profile", os.environ)("show", str(files / "prof"), "--json").stdout)
    for path in ("prof", "prof/0.neuronprofile"):
        assert ask(access, "summarize_profile", path=path, limit=1000) == shown
    (found,) = ask(access, "estimate_run", path="run.json", instance_types="trn1.2xlarge")["estimates"]
    assert found["instance_type"] == "trn1.2xlarge"
    assert found["estimated"]["step_seconds"][0] > 0
    with pytest.raises(UserError, match="start neuron-mcp with --directory"):
        ask(access_to(shared_daemon), "summarize_profile", path="prof")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner, max_size=6),
    max_leaves=20,
)


@pytest.mark.slow
@given(_VALUES.map(lambda value: {"key": value}), st.integers(0, 3000), st.integers(1, 2000))
def test_every_answer_is_bounded_and_says_what_is_left_out(entry: dict[str, Any], count: int, limit: int) -> None:
    whole: dict[str, Any] = {"schema_version": 1, "entries": [entry] * count, "pids": [1, 2]}
    try:
        answer = tools.bounded(whole, limit)
    except UserError as error:
        assert "ask for less" in str(error)
        assert len(json.dumps(entry)) > tools.MOST_ANSWER_BYTES // 2
        return
    assert len(answer.document) <= tools.MOST_ANSWER_BYTES
    shown = json.loads(answer.document)
    kept = len(shown["entries"])
    assert shown == {**whole, "entries": whole["entries"][:kept]}
    assert kept <= limit
    assert (f"{count - kept} of {count} entries" in answer.note) == (kept < count)
    if kept < min(limit, count):  # it could not hold more
        assert (kept + 2) * (len(json.dumps(entry, separators=(",", ":"))) + 1) > tools.MOST_ANSWER_BYTES // 2
