"""Datadog's OpenMetrics check with the names of its aws_neuron integration, once; prints as JSON what it would send.

Run by the interpreter that has datadog-checks-base, with the URL of the metrics. The names are those of
https://docs.datadoghq.com/integrations/aws-neuron.
"""

from __future__ import annotations

import json
import sys

from datadog_checks.base import OpenMetricsBaseCheckV2
from datadog_checks.base.stubs import aggregator

PLAIN = ("instance_info", "neuron_hardware_info", "python_info", "hardware_ecc_events", "hardware_ecc_events_created")
# Of the others: the prefix in Prometheus, and what follows it there and in Datadog.
PREFIXES = {
    "execution_": ("errors", "errors_created", "latency_seconds", "status", "status_created"),
    "neuron_runtime_": ("memory_used_bytes", "vcpu_usage_ratio"),
    "neuroncore_": ("utilization_ratio",),
    "neuroncore_memory_usage_": ("constants", "runtime_memory", "tensors"),
    "neuroncore_memory_usage_model_": ("code", "shared_scratchpad"),
    "process_": (
        *("cpu_seconds", "max_fds", "open_fds", "resident_memory_bytes", "start_time_seconds", "virtual_memory_bytes"),
    ),
    "python_gc_": ("collections", "objects_collected", "objects_uncollectable"),
    "system_memory_": ("total_bytes", "used_bytes"),
    "system_swap_": ("total_bytes", "used_bytes"),
    "system_vcpu_": ("count", "usage_ratio"),
}
# What a prefix is in Datadog where it has not a dot for each underscore.
DOTTED = {
    "neuron_runtime_": "neuron_runtime.",
    "neuroncore_memory_usage_": "neuroncore.memory_usage.",
    "neuroncore_memory_usage_model_": "neuroncore.memory_usage.model.",
    "python_gc_": "python_gc.",
}
METRICS = {name: name for name in PLAIN} | {
    prefix + name: DOTTED.get(prefix, prefix.replace("_", ".")) + name
    for prefix, names in PREFIXES.items()
    for name in names
}


class NeuronCheck(OpenMetricsBaseCheckV2):  # type: ignore[misc]
    """The integration's check."""

    __NAMESPACE__ = "aws_neuron"
    DEFAULT_METRIC_LIMIT = 0

    def get_default_config(self) -> dict[str, object]:
        """What is read, and the one label that would clash with Datadog's own."""
        return {"metrics": [METRICS], "rename_labels": {"version": "python_version"}}


def main() -> None:
    """Two runs, as counts need two."""
    check = NeuronCheck("aws_neuron", {}, [{"openmetrics_endpoint": sys.argv[1]}])
    for _ in range(2):
        failure = check.run()
        if failure:
            sys.exit(failure)
    names = aggregator.metric_names
    found = {name: [[one.type, one.value, one.tags] for one in aggregator.metrics(name)] for name in names}
    checks = [one.status for one in aggregator.service_checks("aws_neuron.openmetrics.health")]
    print(json.dumps({"expected": sorted(METRICS.values()), "metrics": found, "health": checks}))


if __name__ == "__main__":
    main()
