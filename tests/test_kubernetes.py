"""The Helm chart, rendered by Helm's own library, and the manifests that are made of it."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from neurond.startup.configuration import DaemonConfiguration

from neurontools.util.version import __version__
from tests.harness.answering_server import Reply, answering
from tests.harness.consumers import consumer
from tests.harness.paths import ROOT
from tests.harness.waiting import HANG_SECONDS, run_to_end

yaml = pytest.importorskip("yaml")

KUBERNETES = ROOT / "deploy/kubernetes"
CHART = KUBERNETES / "chart"
RULES = ROOT / "deploy/prometheus/neuron.rules.yml"
# The oldest and the newest Kubernetes that the manifest is checked against.
KUBERNETES_VERSIONS = ("1.30", "1.36")
MONITORED = {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}
OTHER_VALUES: dict[str, Any] = {
    "image": {"repository": "registry.example/neurontools", "tag": "7", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "fullnameOverride": "neuron-monitor",
    "port": 9000,
    "scheme": "HTTPS",
    "configuration": '[metrics]\nlisten = ":{{ .Values.port }}"\nuntagged_together = true\n',
    "nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["trn"]}]}],
    "tolerations": [],
    "priorityClassName": "high",
    "resources": {"limits": {"memory": "200Mi"}},
    "podAnnotations": {"team": "ml"},
    "podLabels": {"tier": "node"},
    "maxUnavailable": 2,
    "extraVolumes": [{"name": "tls", "secret": {"secretName": "metrics-tls"}}],
    "extraVolumeMounts": [{"name": "tls", "mountPath": "/etc/neurontools-tls", "readOnly": True}],
    "scrapeAnnotations": False,
    "podMonitor": {
        "enabled": True,
        "labels": {"release": "prometheus"},
        "interval": "30s",
        "endpoint": {"tlsConfig": {"insecureSkipVerify": True}},
    },
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"imagee": {}}, "imagee"),
    ({"port": "8000"}, "port"),
    ({"port": 0}, "port"),
    ({"podMonitor": {"interval": "often"}}, "interval"),
    ({"nodeSelectorTerms": []}, "nodeSelectorTerms"),
    ({"image": {"repository": ""}}, "repository"),
]


def answered(script: str, *arguments: str, asked: object) -> Any:
    """What a script of the harness prints, which the interpreter with other people's programs runs."""
    done = run_to_end([consumer("python"), str(ROOT / "tests/harness" / script), *arguments], input=json.dumps(asked))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def charts() -> list[dict[str, Any]]:
    """The documents by their kind, of the chart's defaults, MONITORED and OTHER_VALUES; then the errors of REFUSED."""
    values = [{}, MONITORED, OTHER_VALUES, *(values for values, _ in REFUSED)]
    answers = answered("helm_chart.py", str(CHART), asked=values)
    made: list[dict[str, Any]] = []
    for answer in answers[:3]:
        assert answer["lint"] == []
        texts = [text for path, text in answer["rendered"].items() if path.endswith(".yaml") and text.strip()]
        made.append({document["kind"]: document for document in map(yaml.safe_load, texts)})
    return [*made, *answers[3:]]


def manifest(name: str) -> list[Any]:
    return list(yaml.safe_load_all((KUBERNETES / name).read_text("utf-8")))


def test_manifests_are_what_the_chart_makes(tmp_path: Path) -> None:
    command = [consumer("python"), str(KUBERNETES / "make_manifests.py"), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=HANG_SECONDS)
    made = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    assert made == {name: (KUBERNETES / name).read_text("utf-8") for name in ("neurond.yaml", "monitoring.yaml")}
    assert [each["kind"] for each in manifest("neurond.yaml")] == ["Namespace", "ConfigMap", "DaemonSet"]
    assert [each["kind"] for each in manifest("monitoring.yaml")] == ["PodMonitor", "PrometheusRule"]


PULL = """
import sys, helm_python
helm_python.pull("neurond", repo_url=sys.argv[1], destination=sys.argv[2])
verified = helm_python.verify(f"{sys.argv[2]}/{sys.argv[3]}", sys.argv[4], provenance_file=sys.argv[5])
print(verified["file_hash"], *verified["signed_by"])
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gpg") is None, reason="gpg is not installed")
def test_helm_takes_the_chart_from_the_repository_and_verifies_who_signed_it(tmp_path: Path) -> None:
    (home := tmp_path / "gpg").mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--pinentry-mode", "loopback", "--passphrase", ""]
    steps = ["--quick-generate-key", "releases"], ["-o", "secret", "--export-secret-keys"], ["-o", "public", "--export"]
    for step in steps:
        done = run_to_end([*gpg, *step], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    run_to_end(["gpgconf", "--homedir", str(home), "--kill", "all"], check=True)
    variables = {"SOURCE_DATE_EPOCH": "1700000000", "HELM_KEYRING": str(tmp_path / "secret"), "HELM_KEY": "releases"}
    made = []
    for name in ("first", "again"):
        command = [consumer("python"), str(ROOT / "packaging/make_helm_repository.py"), str(tmp_path / name)]
        done = run_to_end(command, env=os.environ | variables)
        assert done.returncode == 0, done.stderr
        made.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir() if path.suffix != ".prov"})
    assert made[0] == made[1], "the same source gives the same bytes"
    chart = f"neurond-{__version__}.tgz"
    with answering(lambda request: Reply((tmp_path / "first" / request.path.rpartition("/")[2]).read_bytes())) as (
        url,
        _,
    ):
        arguments = [url, tmp_path, chart, tmp_path / "public", tmp_path / "first" / f"{chart}.prov"]
        done = run_to_end([consumer("python"), "-c", PULL, *arguments])
    assert done.returncode == 0, done.stderr
    (entry,) = yaml.safe_load(made[0]["index.yaml"])["entries"]["neurond"]
    assert done.stdout.split() == [f"sha256:{entry['digest']}", "releases"]


def test_configuration_in_the_manifest_is_valid() -> None:
    written = manifest("neurond.yaml")[1]["data"]["neurond.toml"]
    assert DaemonConfiguration.model_validate(tomllib.loads(written)).metrics.listen == ":8000"


def test_daemon_set_finds_nodes_by_label_and_runs_on_those_that_are_kept_apart_too() -> None:
    pod = manifest("neurond.yaml")[2]["spec"]["template"]["spec"]
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    asked = [{each["key"]: (each["operator"], each["values"]) for each in term["matchExpressions"]} for term in terms]
    assert asked[0] == {"neuron.amazonaws.com/present": ("In", ["true"])}
    assert asked[1]["sagemaker.amazonaws.com/compute-type"] == ("In", ["hyperpod"])
    assert "instance-type" not in (KUBERNETES / "neurond.yaml").read_text("utf-8"), "a list that ends before the next"
    tolerated = {each["key"] for each in pod["tolerations"]}
    assert {"aws.amazon.com/neuron", "sagemaker.amazonaws.com/node-health-status"} <= tolerated
    (container,) = pod["containers"]
    assert container["resources"] == {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "160Mi"}}
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}


@pytest.mark.slow
@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_what_the_chart_makes_meets_the_schemas_of_kubernetes(
    charts: list[dict[str, Any]], version: str, tmp_path: Path
) -> None:
    asked = [documents[kind] for documents in (charts[0], charts[2]) for kind in ("ConfigMap", "DaemonSet")]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(asked), "utf-8")
    command = [consumer("kubernetes-validate"), "--strict", "--kubernetes-version", version, str(tmp_path / "all.yaml")]
    done = run_to_end(command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed for resource") == len(asked)


@pytest.mark.slow
def test_what_the_prometheus_operator_gets_is_as_it_defines_it_and_slips_are_not(charts: list[dict[str, Any]]) -> None:
    asked = [documents[kind] for documents in charts[1:3] for kind in ("PodMonitor", "PrometheusRule")]
    slips = {"interval": "15 apples", "scheme": "ftp", "every": "15s"}
    for name, value in slips.items():
        monitor = copy.deepcopy(asked[0])
        monitor["spec"]["podMetricsEndpoints"][0][name] = value
        asked.append(monitor)
    errors = answered("operator_resources.py", asked=asked)
    assert errors[:4] == [""] * 4
    for name, error in zip(slips, errors[4:], strict=True):
        assert name in error


def test_every_value_takes_effect(charts: list[dict[str, Any]]) -> None:
    documents = charts[2]
    assert {each["metadata"]["name"] for each in documents.values()} == {"neuron-monitor"}
    assert {each["metadata"]["namespace"] for each in documents.values()} == {"elsewhere"}
    listen = tomllib.loads(documents["ConfigMap"]["data"]["neurond.toml"])["metrics"]
    assert listen == {"listen": ":9000", "untagged_together": True}
    spec = documents["DaemonSet"]["spec"]
    template = spec["template"]
    assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 2}
    assert template["metadata"]["labels"]["tier"] == "node"
    assert {name.partition("/")[0] for name in template["metadata"]["annotations"]} == {"checksum", "team"}
    pod = template["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "registry.example/neurontools:7"
    assert container["imagePullPolicy"] == "Always"
    assert container["ports"] == [{"name": "metrics", "containerPort": 9000}]
    assert (
        container["livenessProbe"]["httpGet"]["scheme"] == container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    )
    assert container["resources"]["limits"] == {"memory": "200Mi"}
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert (pod["priorityClassName"], pod["tolerations"]) == ("high", [])
    affinity = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert affinity == {"nodeSelectorTerms": OTHER_VALUES["nodeSelectorTerms"]}
    assert OTHER_VALUES["extraVolumes"][0] in pod["volumes"]
    assert OTHER_VALUES["extraVolumeMounts"][0] in container["volumeMounts"]
    monitor = documents["PodMonitor"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["scheme"], endpoint["interval"]) == ("https", "30s")
    assert endpoint["tlsConfig"] == {"insecureSkipVerify": True}
    assert documents["PrometheusRule"]["metadata"]["labels"]["release"] == "prometheus"


def test_nothing_is_asked_of_the_prometheus_operator_where_it_is_not_asked_for(charts: list[dict[str, Any]]) -> None:
    assert charts[0].keys() == {"ConfigMap", "DaemonSet"}


def test_values_that_cannot_be_meant_are_refused_by_name(charts: list[dict[str, Any]]) -> None:
    for (_, named), answer in zip(REFUSED, charts[3:], strict=True):
        assert named in answer["error"]


def test_prometheus_gets_the_job_and_the_node_that_alerts_name(tmp_path: Path) -> None:
    monitor, rule = manifest("monitoring.yaml")
    pods = manifest("neurond.yaml")[2]["spec"]["template"]["metadata"]["labels"]
    assert pods[monitor["spec"]["jobLabel"]] == "neurond"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pods.items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"][0]["targetLabel"] == "instance"
    assert rule["spec"] == yaml.safe_load(RULES.read_text("utf-8"))
    if shutil.which("promtool"):
        (tmp_path / "rules.yml").write_text(yaml.safe_dump(rule["spec"]), "utf-8")
        subprocess.run(
            ["promtool", "check", "rules", str(tmp_path / "rules.yml")],
            check=True,
            capture_output=True,
            timeout=HANG_SECONDS,
        )


def test_every_value_is_documented_and_known_to_the_schema() -> None:
    text = (CHART / "values.yaml").read_text("utf-8")
    values = yaml.safe_load(text)
    properties = json.loads((CHART / "values.schema.json").read_text("utf-8"))["properties"]
    assert values.keys() == OTHER_VALUES.keys() == properties.keys() - {"global"}
    for name, value in values.items():
        # A comment stands above each, or above the first of those that belong together, which no empty line parts.
        paragraph = next(each for each in text.split("\n\n") if re.search(rf"^{name}:", each, re.MULTILINE))
        assert paragraph.lstrip().startswith("# "), name
        if "properties" in properties[name]:
            assert value.keys() == properties[name]["properties"].keys()


def test_chart_is_of_the_version_of_the_suite() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
