"""The metric groups of neuron-monitor, by the names that configurations and records give them."""

from __future__ import annotations

NEURONCORE_COUNTERS = "neuroncore_counters"
MEMORY_USED = "memory_used"
RUNTIME_VCPU_USAGE = "neuron_runtime_vcpu_usage"
EXECUTION_STATS = "execution_stats"
RUNTIME_GROUPS = (NEURONCORE_COUNTERS, MEMORY_USED, RUNTIME_VCPU_USAGE, EXECUTION_STATS)

VCPU_USAGE = "vcpu_usage"
MEMORY_INFO = "memory_info"
HW_COUNTERS = "neuron_hw_counters"
SYSTEM_GROUPS = (VCPU_USAGE, MEMORY_INFO, HW_COUNTERS)

DEFAULT_PERIOD_SECONDS = 5.0
SHORTEST_PERIOD_SECONDS = 0.01
LONGEST_PERIOD_SECONDS = 86_400.0
