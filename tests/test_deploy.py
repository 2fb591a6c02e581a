"""What is shipped for fleets: rules with their own tests, a dashboard, manifests."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from neurontools import catalog

DEPLOY = Path(__file__).parents[1] / "deploy"
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


@needs_promtool
@pytest.mark.parametrize(
    "arguments", [["check", "rules", "neuron.rules.yml"], ["test", "rules", "neuron.rules.test.yml"]]
)
def test_rules(arguments: list[str]) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=DEPLOY / "prometheus", capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_and_says_what_to_do() -> None:
    rules = (DEPLOY / "prometheus/neuron.rules.yml").read_text("utf-8")
    tests = (DEPLOY / "prometheus/neuron.rules.test.yml").read_text("utf-8")
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert len(alerts) > 10
    assert set(alerts) == set(re.findall(r"alertname: (\w+)", tests))
    assert rules.count("          action: ") == rules.count("          summary: ") == len(alerts)


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


def test_configuration_in_the_manifest_is_valid() -> None:
    manifest = (DEPLOY / "kubernetes/neurond.yaml").read_text("utf-8")
    written = re.search(r"neurond\.toml: \|\n((?:    .*\n)+)", manifest)
    assert written
    tables = tomllib.loads("\n".join(line[4:] for line in written[1].splitlines()))
    from neurond.configuration import Configuration

    assert Configuration.model_validate(tables).metrics.listen == ":8000"
    types = re.findall(r"^ {22}- ([a-z0-9]+\.[a-z0-9]+)$", manifest, re.MULTILINE)
    assert len(types) > 10
    assert set(types) <= set(catalog.names())


def test_manifests_are_yaml() -> None:
    yaml = pytest.importorskip("yaml")
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes/neurond.yaml").read_text("utf-8")))
    assert [document["kind"] for document in documents] == ["Namespace", "ConfigMap", "DaemonSet"]
    pod = documents[2]["spec"]["template"]["spec"]
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    assert (
        documents[2]["spec"]["selector"]["matchLabels"].items()
        <= documents[2]["spec"]["template"]["metadata"]["labels"].items()
    )
