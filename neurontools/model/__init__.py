"""The state of one host at one moment: the one definition of every quantity, its unit and its meaning.

Every part is a frozen dataclass. `None` means unknown and is never a substitute for 0. A quantity carries its unit in
its name: `_bytes`, `_seconds`, `_ratio` (0..1); `_total` marks a counter that only grows. Field names are those of
`neuron.proto`: `neurontools.rpc.convert` maps the two by name.

Cores are physical NeuronCores. What a user calls a core may be a pair of them (LNC 2): `logical` groups them.
"""

from neurontools.util.light_imports import lazy_names

TYPE_CHECKING = False  # as typing has it, without its import
if TYPE_CHECKING:
    from neurontools.model.attribution import Attribution, Job, PodAllocation
    from neurontools.model.device import Device, EccCounters, HbmStack, PowerUtilization, ReportedHealth
    from neurontools.model.ended import EndedProcess
    from neurontools.model.execution import (
        ErrorCounters,
        ExecutionCounters,
        LatencyHistogram,
        LatencyPercentiles,
        StatusCounters,
    )
    from neurontools.model.finding import Finding, Health, Severity
    from neurontools.model.host import Disk, Host, NetworkInterface, RdmaPort, VcpuTimes, VcpuUsage
    from neurontools.model.injected_fault import FaultState, InjectedFault
    from neurontools.model.instance import Instance, UltraServerNode
    from neurontools.model.logical import LogicalNeuronCore, logical_cores
    from neurontools.model.memory import DeviceMemory, HostMemory, memory_categories, sum_device_memory, sum_host_memory
    from neurontools.model.neuroncore import NeuronCore
    from neurontools.model.process import CoreWork, LoadedModel, Process, Subgraph
    from neurontools.model.snapshot import Snapshot, SourceKind
    from neurontools.model.training import OperatorTime, RecentSteps, ScriptAdvice, TrainingCounters, TrainingRates

__all__ = [
    "Attribution",
    "CoreWork",
    "Device",
    "DeviceMemory",
    "Disk",
    "EccCounters",
    "EndedProcess",
    "ErrorCounters",
    "ExecutionCounters",
    "FaultState",
    "Finding",
    "HbmStack",
    "Health",
    "Host",
    "HostMemory",
    "InjectedFault",
    "Instance",
    "Job",
    "LatencyHistogram",
    "LatencyPercentiles",
    "LoadedModel",
    "LogicalNeuronCore",
    "NetworkInterface",
    "NeuronCore",
    "OperatorTime",
    "PodAllocation",
    "PowerUtilization",
    "Process",
    "RdmaPort",
    "RecentSteps",
    "ReportedHealth",
    "ScriptAdvice",
    "Severity",
    "Snapshot",
    "SourceKind",
    "StatusCounters",
    "Subgraph",
    "TrainingCounters",
    "TrainingRates",
    "UltraServerNode",
    "VcpuTimes",
    "VcpuUsage",
    "logical_cores",
    "memory_categories",
    "sum_device_memory",
    "sum_host_memory",
]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        "snapshot",
        "attribution",
        "device",
        "ended",
        "execution",
        "finding",
        "host",
        "injected_fault",
        "instance",
        "logical",
        "memory",
        "neuroncore",
        "process",
        "training",
    )
