"""Writes neurond.yaml and monitoring.yaml, the chart as rendered with its defaults, for users without Helm.

It needs Helm's library, which `make consumers` installs: .venv/consumers/bin/python deploy/kubernetes/make_manifests.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import helm_python

HERE = Path(__file__).parent
NAMESPACE = "neurontools"
NEUROND = """\
# neurond on every node with Neuron devices: kubectl apply -f neurond.yaml
# `make image` builds the image; put your registry's name in its place below, or use kustomization.yaml.
# Made of the Helm chart beside this file by make_manifests.py: change that.
apiVersion: v1
kind: Namespace
metadata:
  name: neurontools
"""
MONITORING = """\
# For the Prometheus operator, beside neurond.yaml: kubectl apply -f monitoring.yaml
# Made of the Helm chart beside this file by make_manifests.py: change that.
"""


def manifests() -> dict[str, str]:
    """Returns the texts of both files by file name."""
    enabled = {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}
    with helm_python.Chart.load(HERE / "chart") as chart:
        rendered = chart.render(enabled, name="neurond", namespace=NAMESPACE)

    def part(name: str) -> str:
        lines = rendered[f"neurond/templates/{name}.yaml"].strip().splitlines()
        return "".join(f"{line.rstrip()}\n" for line in lines)

    return {
        "neurond.yaml": "---\n".join((NEUROND, part("configmap"), part("daemonset"))),
        "monitoring.yaml": MONITORING + "---\n".join((part("podmonitor"), part("prometheusrule"))),
    }


if __name__ == "__main__":
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name, text in manifests().items():
        (directory / name).write_text(text, "utf-8")
