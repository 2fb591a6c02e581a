"""Writes neuron.json, the Grafana dashboard, from the table of its panels: python make_dashboard.py > neuron.json."""

from __future__ import annotations

import json
import sys
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
HOSTS = 'instance=~"$instance"'
OWNER = "neurontools_neuroncore_owner_info"
UTILIZATION = f"neurontools_neuroncore_utilization_ratio{{{HOSTS}}}"
HBM_USED = f"neurontools_device_hbm_used_bytes{{{HOSTS}}}"
HBM = f"neurontools_device_hbm_bytes{{{HOSTS}}}"
HELD_MFU = (
    f"avg by (instance) (neurontools_neuroncore_mfu_ratio{{{HOSTS}}} "
    "and on (instance, neuroncore) (neurontools_neuroncore_held == 1))"
)
USER_UTILIZATION = (
    f"avg by (user, runtime_tag) ({UTILIZATION} * on (instance, neuroncore) group_left (user, runtime_tag) "
    f"group by (instance, neuroncore, user, runtime_tag) ({OWNER}))"
)

# Row: panels of (title, kind, unit, width, [(query, legend)]).
ROWS: list[tuple[str, list[tuple[str, str, str, int, list[tuple[str, str]]]]]] = [
    (
        "Fleet",
        [
            ("Hosts", "stat", "none", 4, [(f'sum(up{{job="neurond", {HOSTS}}})', "")]),
            ("Devices", "stat", "none", 4, [(f"sum(neurontools_devices{{{HOSTS}}})", "")]),
            ("Cores held", "stat", "percentunit", 4, [(f"avg(neurontools_neuroncore_held{{{HOSTS}}})", "")]),
            (
                "Utilization",
                "stat",
                "percentunit",
                4,
                [(f"avg(neurontools_neuroncore_utilization_ratio{{{HOSTS}}})", "")],
            ),
            (
                "HBM in use",
                "stat",
                "percentunit",
                4,
                [
                    (
                        f"sum({HBM_USED}) / sum({HBM})",
                        "",
                    )
                ],
            ),
            (
                "Devices with a warning or worse",
                "stat",
                "none",
                4,
                [(f"count(neurontools_device_health{{{HOSTS}}} >= 2) or vector(0)", "")],
            ),
        ],
    ),
    (
        "Work",
        [
            (
                "Utilization by host",
                "timeseries",
                "percentunit",
                12,
                [(f"avg by (instance) (neurontools_neuroncore_utilization_ratio{{{HOSTS}}})", "{{instance}}")],
            ),
            (
                "MFU of held cores by host (bf16 peak)",
                "timeseries",
                "percentunit",
                12,
                [
                    (
                        HELD_MFU,
                        "{{instance}}",
                    )
                ],
            ),
            (
                "Utilization by core",
                "heatmap",
                "percentunit",
                12,
                [(f"neurontools_neuroncore_utilization_ratio{{{HOSTS}}}", "{{instance}} {{neuroncore}}")],
            ),
            (
                "FLOPS by host",
                "timeseries",
                "flops",
                12,
                [(f"sum by (instance) (neurontools_neuroncore_flops{{{HOSTS}}})", "{{instance}}")],
            ),
            (
                "Executions a second",
                "timeseries",
                "ops",
                12,
                [
                    (
                        f"sum by (instance, status_type) (rate(execution_status_total{{{HOSTS}}}[$__rate_interval]))",
                        "{{instance}} {{status_type}}",
                    )
                ],
            ),
            (
                "Execution latency",
                "timeseries",
                "s",
                12,
                [
                    (
                        f'max by (instance, percentile) (execution_latency_seconds{{{HOSTS}, percentile=~"p50|p99"}})',
                        "{{instance}} {{percentile}}",
                    )
                ],
            ),
        ],
    ),
    (
        "Who holds what",
        [
            ("Owners of cores", "table", "none", 24, [(f"{OWNER}{{{HOSTS}}}", "")]),
            (
                "Utilization by user and job",
                "timeseries",
                "percentunit",
                12,
                [
                    (
                        USER_UTILIZATION,
                        "{{user}} {{runtime_tag}}",
                    )
                ],
            ),
            (
                "Held cores without an execution for 5 minutes",
                "timeseries",
                "none",
                12,
                [
                    (
                        f"count by (instance) (neurontools_neuroncore_seconds_since_last_execution{{{HOSTS}}} > 300)",
                        "{{instance}}",
                    )
                ],
            ),
        ],
    ),
    (
        "Memory",
        [
            (
                "Device memory by category",
                "timeseries",
                "bytes",
                12,
                [(f"sum by (category) (neurontools_neuroncore_memory_bytes{{{HOSTS}}})", "{{category}}")],
            ),
            (
                "Fullest HBM by host",
                "timeseries",
                "percentunit",
                12,
                [
                    (
                        f"max by (instance) ({HBM_USED} / {HBM})",
                        "{{instance}}",
                    )
                ],
            ),
        ],
    ),
    (
        "Health",
        [
            (
                "Gravest finding by device (1 notice, 2 warning, 3 critical)",
                "timeseries",
                "none",
                12,
                [(f"neurontools_device_health{{{HOSTS}}} > 0", "{{instance}} device {{neuron_device_index}}")],
            ),
            (
                "Findings",
                "table",
                "none",
                12,
                [(f"neurontools_device_findings{{{HOSTS}}}", "")],
            ),
            (
                "ECC events an hour",
                "timeseries",
                "none",
                12,
                [
                    (
                        f"sum by (instance, event_type) (increase(hardware_ecc_events_total{{{HOSTS}}}[1h]))",
                        "{{instance}} {{event_type}}",
                    )
                ],
            ),
            (
                "Errors of executions an hour",
                "timeseries",
                "none",
                12,
                [
                    (
                        f"sum by (instance, error_type) (increase(execution_errors_total{{{HOSTS}}}[1h]))",
                        "{{instance}} {{error_type}}",
                    )
                ],
            ),
        ],
    ),
    (
        "Host and daemon",
        [
            (
                "vCPUs of the hosts",
                "timeseries",
                "percentunit",
                8,
                [(f"sum by (instance) (system_vcpu_usage_ratio{{{HOSTS}}})", "{{instance}}")],
            ),
            (
                "Memory of the hosts",
                "timeseries",
                "percentunit",
                8,
                [
                    (
                        f"system_memory_used_bytes{{{HOSTS}}} / system_memory_total_bytes{{{HOSTS}}}",
                        "{{instance}}",
                    )
                ],
            ),
            (
                "CPU of neurond",
                "timeseries",
                "percentunit",
                8,
                [(f"rate(neurontools_daemon_cpu_seconds_total{{{HOSTS}}}[$__rate_interval])", "{{instance}}")],
            ),
        ],
    ),
]
HEIGHTS = {"stat": 4, "timeseries": 8, "heatmap": 8, "table": 8}
COLUMNS = 24


def dashboard() -> dict[str, Any]:
    """Returns the document that Grafana imports."""
    return {
        "title": "Neuron fleet",
        "uid": "neurontools-fleet",
        "description": "Hosts with Neuron devices, by the metrics of neurond",
        "tags": ["neuron", "neurontools"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), _instance()]},
        "panels": _panels(),
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _instance() -> dict[str, Any]:
    query = "label_values(neurontools_devices, instance)"
    return {
        "name": "instance",
        "label": "Host",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": "instance"},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
                "panels": [],
            }
        )
        y += 1
        x = height = 0
        for name, kind, unit, width, targets in row:
            if x + width > COLUMNS:
                x, y = 0, y + height
            height = HEIGHTS[kind]
            position = {"x": x, "y": y, "w": width, "h": height}
            panels.append(_panel(len(panels) + 1, name, kind, unit, position, targets))
            x += width
        y += height
    return panels


def _panel(
    number: int, title: str, kind: str, unit: str, position: dict[str, int], targets: list[tuple[str, str]]
) -> dict[str, Any]:
    return {
        "id": number,
        "type": kind,
        "title": title,
        "datasource": SOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": unit, **({"min": 0} if kind == "timeseries" else {})}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query,
                "legendFormat": legend or "__auto",
                **({"instant": True, "format": "table"} if kind == "table" else {}),
            }
            for index, (query, legend) in enumerate(targets)
        ],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dashboard(), indent=2) + "\n")
