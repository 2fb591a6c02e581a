"""The metric families of AWS's neuron-monitor-prometheus.py, which existing dashboards and collectors query.

Every series has the labels of `instance_labels`; a comment at each family lists its other labels. The help texts are
AWS's, word for word, because readers that store metadata report a changed help text.
"""

from __future__ import annotations

from collections.abc import Mapping

from neurontools.exporters.exposition import FamilyDefinition, MetricKind

MEMORY_CATEGORIES = ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")
PERCENTILES = ("p0", "p1", "p25", "p50", "p75", "p99", "p100")
ECC_EVENTS = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_corrected", "sram_ecc_uncorrected")

# Labels of this family: runtime_tag, neuroncore
UTILIZATION = FamilyDefinition("neuroncore_utilization_ratio", MetricKind.GAUGE, "NeuronCore utilization ratio")
# Labels of these families: runtime_tag, neuroncore, memory_location ("None")
CORE_MEMORY = {
    category: FamilyDefinition(
        f"neuroncore_memory_usage_{category}", MetricKind.GAUGE, f"NeuronCore memory utilization for {category}"
    )
    for category in MEMORY_CATEGORIES
}
# Labels of this family: runtime_tag, memory_location (host or neuron_device)
RUNTIME_MEMORY = FamilyDefinition("neuron_runtime_memory_used_bytes", MetricKind.GAUGE, "Runtime memory used bytes")
# Labels of this family: runtime_tag, usage_type (user or system)
RUNTIME_VCPU = FamilyDefinition("neuron_runtime_vcpu_usage_ratio", MetricKind.GAUGE, "Runtime vCPU utilization ratio")
# Labels of this family: runtime_tag, error_type
EXECUTION_ERRORS = FamilyDefinition("execution_errors", MetricKind.COUNTER, "Execution errors total")
# Labels of this family: runtime_tag, status_type
EXECUTION_STATUS = FamilyDefinition("execution_status", MetricKind.COUNTER, "Execution status total")
# Labels of this family: runtime_tag, percentile
EXECUTION_LATENCY = FamilyDefinition("execution_latency_seconds", MetricKind.GAUGE, "Execution latency in seconds")
# Labels of this family: neuron_device_index, event_type
ECC = FamilyDefinition("hardware_ecc_events", MetricKind.COUNTER, "Hardware ecc events total")
MEMORY_TOTAL = FamilyDefinition("system_memory_total_bytes", MetricKind.GAUGE, "System memory total_bytes bytes")
MEMORY_USED = FamilyDefinition("system_memory_used_bytes", MetricKind.GAUGE, "System memory used_bytes bytes")
SWAP_TOTAL = FamilyDefinition("system_swap_total_bytes", MetricKind.GAUGE, "System swap total_bytes bytes")
SWAP_USED = FamilyDefinition("system_swap_used_bytes", MetricKind.GAUGE, "System swap used_bytes bytes")
VCPU_COUNT = FamilyDefinition("system_vcpu_count", MetricKind.GAUGE, "System vCPU count")
# Label of this family: usage_type, "user" (user and nice) or "system" (system, io_wait, irq and soft_irq)
VCPU_USAGE = FamilyDefinition("system_vcpu_usage_ratio", MetricKind.GAUGE, "System CPU utilization ratio")
INSTANCE_INFO = FamilyDefinition("instance", MetricKind.INFO, "EC2 instance information")
HARDWARE_LABELS = ("neuron_device_count", "neuroncore_per_device_count", "neuron_device_memory_size")
HARDWARE_INFO = FamilyDefinition("neuron_hardware", MetricKind.INFO, "Neuron Hardware Information")

VCPU_USAGE_PARTS = {"user": ("user", "nice"), "system": ("system", "io_wait", "irq", "soft_irq")}


def instance_labels(instance_info: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Returns the labels that every series has, from the instance_info of a record."""
    labels = {
        "availability_zone": instance_info.get("instance_availability_zone"),
        "instance_id": instance_info.get("instance_id"),
        "instance_name": instance_info.get("instance_name"),
        "instance_type": instance_info.get("instance_type"),
        "region": instance_info.get("instance_region"),
        "subnet_id": instance_info.get("subnet_id"),
    }
    if instance_info.get("ultraserver_id"):
        labels["ultraserver_id"] = instance_info["ultraserver_id"]
    return tuple((name, str(value or "")) for name, value in labels.items())
