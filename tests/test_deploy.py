"""What is shipped for fleets: rules with their own tests, a dashboard, a unit, an image."""

from __future__ import annotations

import grp
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from neurond.startup.configuration import DaemonConfiguration

from neurontools.exporters.snapshot_metrics import FLEET_FAMILIES
from neurontools.fleet.prometheus import queries
from neurontools.fleet.prometheus.queries import OverviewQueries
from tests.harness.consumers import consumer
from tests.harness.waiting import run_to_end

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed")


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A tool that has to end well."""
    done = run_to_end(command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@needs("promtool")
@pytest.mark.parametrize(
    "arguments",
    ["check rules neuron.rules.yml", pytest.param("test rules neuron.rules.test.yml", marks=pytest.mark.slow)],
)
def test_rules(arguments: str) -> None:
    run("promtool", *arguments.split(), cwd=DEPLOY / "prometheus")


def test_every_alert_has_a_test_and_says_what_to_do() -> None:
    rules = (DEPLOY / "prometheus/neuron.rules.yml").read_text("utf-8")
    tests = (DEPLOY / "prometheus/neuron.rules.test.yml").read_text("utf-8")
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert len(alerts) >= 8
    assert set(alerts) == set(re.findall(r"alertname: (\w+)", tests))
    assert rules.count("          action: ") == rules.count("          summary: ") == len(alerts)


def test_recording_rules_are_what_neuron_top_asks_without_them() -> None:
    rules = (DEPLOY / "prometheus/neuron.rules.yml").read_text("utf-8")
    written = re.findall(r"- record: (\S+)\n        expr: (?:>-\n)?((?:.+\n)(?:          .+\n)*)", rules)
    recorded = {name: " ".join(expression.split()) for name, expression in written}
    asked = queries.JOB_RULES
    assert {rule.rule: recorded[rule.rule] for rule in asked} == {rule.rule: rule.expression for rule in asked}


def test_the_page_for_fleets_has_every_metric_of_the_rules_and_of_neuron_top() -> None:
    rules = (DEPLOY / "prometheus/neuron.rules.yml").read_text("utf-8")
    texts = OverviewQueries(are_users_wanted=True).texts.values()
    pods = {"neurontools_neuroncore_utilization_ratio", "neurontools_neuroncore_owner_info"}
    names = re.compile(r"\b(?:neurontools_[a-z_0-9]*[a-z0-9]|instance_info)\b")  # no begin of names: =~"a_.+"
    wanted = {name for text in (rules, *texts) for name in names.findall(text)}
    assert wanted - {family.sample_name for family in FLEET_FAMILIES} == pods


def test_dashboard_is_what_its_script_writes() -> None:
    made = runpy.run_path(str(DEPLOY / "grafana/make_dashboard.py"))["dashboard"]()
    assert json.loads((DEPLOY / "grafana/neuron.json").read_text("utf-8")) == made


def test_dashboard_has_what_grafana_wants() -> None:
    dashboard: Any = json.loads((DEPLOY / "grafana/neuron.json").read_text("utf-8"))
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, f"{panel['title']} lies on another"
        taken |= cells
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
            assert "$instance" in target["expr"]
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {"datasource", "instance"}


@pytest.mark.slow
def test_dashboard_is_one_by_grafanas_own_models(tmp_path: Path) -> None:
    slip = json.loads((DEPLOY / "grafana/neuron.json").read_text("utf-8"))
    slip["panels"][1]["gridPosition"] = slip["panels"][1].pop("gridPos")
    (tmp_path / "slip.json").write_text(json.dumps(slip), "utf-8")
    files = (DEPLOY / "grafana/neuron.json", tmp_path / "slip.json")
    unknown = json.loads(run(consumer("python"), ROOT / "tests/harness/grafana_round_trip.py", *files).stdout)
    # The text of a variable's query: Grafana writes it beside the query, the models don't have it.
    assert unknown[0] == ["/templating/list/1/definition"]
    assert "/panels/1/gridPosition" in unknown[1]


def test_image_has_the_tools_where_the_original_has_them_and_starts_the_daemon_as_a_user() -> None:
    lines = (DEPLOY / "kubernetes/Dockerfile").read_text("utf-8").replace("\\\n", " ").splitlines()
    steps = [line.partition(" ")[::2] for line in lines if line and not line.startswith("#")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (python,) = re.findall(r"/python:(3\.\d+)-slim$", dict(steps)["ARG"])
    assert f"Programming Language :: Python :: {python}" in project["classifiers"]
    assert set(ORIGINAL_TOOLS) == set(re.findall(r"neuron-[\w.-]+", steps[4][1]))
    assert json.loads(dict(steps)["ENTRYPOINT"]) == ["neurond"]
    assert int(dict(steps)["USER"].partition(":")[0]) > 0


ORIGINAL_TOOLS = ("neuron-ls", "neuron-monitor", "neuron-monitor-prometheus.py", "neuron-top")


@needs("systemd-tmpfiles")
def test_tmpfiles_puts_the_tools_where_the_original_has_them_and_leaves_the_original(tmp_path: Path) -> None:
    place = tmp_path / "opt/aws/neuron/bin"
    place.mkdir(parents=True)
    (place / "neuron-ls").write_text("AWS's own", "utf-8")
    for _ in range(2):
        run("systemd-tmpfiles", "--create", f"--root={tmp_path}", DEPLOY / "neurontools.tmpfiles.conf")
    assert sorted(path.name for path in place.iterdir()) == sorted(ORIGINAL_TOOLS)
    assert (place / "neuron-ls").read_text("utf-8") == "AWS's own"
    for name in set(ORIGINAL_TOOLS) - {"neuron-ls"}:
        assert str((place / name).readlink()) == f"/usr/local/bin/{name}"


@needs("systemd-analyze")
def test_unit_is_one_that_systemd_takes() -> None:
    assert run("systemd-analyze", "verify", "--man=no", DEPLOY / "neurond.service").stderr == ""


def test_neurond_toml_shows_every_key_with_its_default() -> None:
    text = (DEPLOY / "neurond.toml").read_text("utf-8")
    assert tomllib.loads(text) == {table: {} for table in DaemonConfiguration.model_fields}, "nothing is in force"
    shown = tomllib.loads(re.sub(r"^#(\w+ = )", r"\1", text, flags=re.MULTILINE))
    DaemonConfiguration.model_validate(shown)  # the examples of those without a default are right too
    for table, defaults in DaemonConfiguration().model_dump().items():
        assert shown[table].keys() == defaults.keys()
        for key, default in defaults.items():
            comment = re.search(rf"((?:^# .*\n)*)^#{key} = ", text, re.MULTILINE)
            assert comment
            assert comment[1] or key == "root", f"{table}.{key} has no comment"
            if default is None:
                assert "Not set: " in comment[1], f"{table}.{key}"
            else:
                assert shown[table][key] == default
                assert "Not set: " not in comment[1], f"{table}.{key}"


def test_unit_and_sysusers_name_the_same_group() -> None:
    unit = (DEPLOY / "neurond.service").read_text("utf-8")
    (made,) = re.findall(r"^g (\S+)", (DEPLOY / "neurontools.sysusers.conf").read_text("utf-8"), re.MULTILINE)
    assert re.findall(r"^Group=(.+)$", unit, re.MULTILINE) == [made]
    assert re.findall(r"^ExecStart=.* --group (\S+)", unit, re.MULTILINE) == [made]


@needs("amtool")
def test_alertmanager_takes_its_configuration() -> None:
    run("amtool", "check-config", DEPLOY / "prometheus/alertmanager.yml")


@needs("systemd-analyze")
def test_what_the_unit_exposes_is_little() -> None:
    done = run("systemd-analyze", "security", "--offline=yes", "--no-pager", DEPLOY / "neurond.service")
    exposure = re.search(r"Overall exposure level for neurond.service: ([\d.]+)", done.stdout)
    assert exposure is not None, done.stderr
    assert float(exposure[1]) <= 3.0


# As the unit: no memory that is both written and executed (prctl(2), PR_SET_MDWE; Linux 6.3).
CONFINED = """
import ctypes, os, sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):
    raise SystemExit("no PR_SET_MDWE")
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.slow
@needs("setpriv")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has powers to give up")
def test_the_daemon_does_with_what_the_unit_leaves_it(socket_directory: Path) -> None:
    unit = (DEPLOY / "neurond.service").read_text("utf-8")
    (kept,) = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    powers = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in kept.split())])
    owner = subprocess.Popen(["setpriv", "--reuid", "65534", "--clear-groups", "sleep", "600"])
    setpriv = ["setpriv", "--no-new-privs", "--bounding-set", powers, "--inh-caps", powers, "--groups", "65534"]
    path = str(socket_directory / "n.sock")
    readable, writable = os.pipe()
    daemon = subprocess.Popen(
        [
            *(*setpriv, sys.executable, "-c", CONFINED, sys.executable, "-m", "neurond", "--simulate", "trn1.2xlarge"),
            *("--group", grp.getgrgid(65534).gr_name, "--socket", path, "--ready-fd", str(writable)),
        ],
        pass_fds=(writable,),
        stderr=subprocess.PIPE,
    )
    os.close(writable)
    try:
        with os.fdopen(readable, "rb") as ready:
            said = ready.readline()
        if not said and b"no PR_SET_MDWE" in daemon.communicate()[1]:
            pytest.skip("this kernel has no PR_SET_MDWE")
        assert said == b"ready\n"
        assert Path(path).stat().st_gid == 65534
        looked = subprocess.run([*setpriv, "ls", f"/proc/{owner.pid}/fd"], capture_output=True, check=False)
        assert looked.returncode == 0, "the open devices of other users are seen"
    finally:
        daemon.terminate()
        daemon.communicate()
        owner.kill()
        owner.wait()
    assert daemon.returncode == 0
