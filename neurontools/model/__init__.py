"""The state of one host at one moment: the one definition of every quantity, its unit and its meaning.

Every part is a frozen dataclass. `None` means unknown and is never a substitute for 0. A quantity carries its unit in
its name: `_bytes`, `_seconds`, `_ratio` (0..1); `_total` marks a counter that only grows. Field names are those of
`neuron.proto`: `neurontools.rpc.convert` maps the two by name.

Cores are physical NeuronCores. What a user calls a core may be a pair of them (LNC 2): `logical` groups them.
"""

from neurontools.model.attribution import Attribution as Attribution
from neurontools.model.attribution import Job as Job
from neurontools.model.attribution import PodAllocation as PodAllocation
from neurontools.model.device import (
    Device as Device,
)
from neurontools.model.device import (
    EccCounters as EccCounters,
)
from neurontools.model.device import (
    HbmStack as HbmStack,
)
from neurontools.model.device import (
    PowerUtilization as PowerUtilization,
)
from neurontools.model.device import (
    ReportedHealth as ReportedHealth,
)
from neurontools.model.ended import EndedProcess as EndedProcess
from neurontools.model.execution import (
    ErrorCounters as ErrorCounters,
)
from neurontools.model.execution import (
    ExecutionCounters as ExecutionCounters,
)
from neurontools.model.execution import (
    LatencyHistogram as LatencyHistogram,
)
from neurontools.model.execution import (
    LatencyPercentiles as LatencyPercentiles,
)
from neurontools.model.execution import (
    StatusCounters as StatusCounters,
)
from neurontools.model.finding import Finding as Finding
from neurontools.model.finding import Health as Health
from neurontools.model.finding import Severity as Severity
from neurontools.model.host import Disk as Disk
from neurontools.model.host import Host as Host
from neurontools.model.host import NetworkInterface as NetworkInterface
from neurontools.model.host import RdmaPort as RdmaPort
from neurontools.model.host import VcpuTimes as VcpuTimes
from neurontools.model.host import VcpuUsage as VcpuUsage
from neurontools.model.injected_fault import FaultState as FaultState
from neurontools.model.injected_fault import InjectedFault as InjectedFault
from neurontools.model.instance import Instance as Instance
from neurontools.model.instance import UltraServerNode as UltraServerNode
from neurontools.model.logical import LogicalNeuronCore as LogicalNeuronCore
from neurontools.model.logical import logical_cores as logical_cores
from neurontools.model.memory import (
    DeviceMemory as DeviceMemory,
)
from neurontools.model.memory import (
    HostMemory as HostMemory,
)
from neurontools.model.memory import (
    memory_categories as memory_categories,
)
from neurontools.model.memory import (
    sum_device_memory as sum_device_memory,
)
from neurontools.model.memory import (
    sum_host_memory as sum_host_memory,
)
from neurontools.model.neuroncore import NeuronCore as NeuronCore
from neurontools.model.process import CoreWork as CoreWork
from neurontools.model.process import LoadedModel as LoadedModel
from neurontools.model.process import Process as Process
from neurontools.model.process import Subgraph as Subgraph
from neurontools.model.snapshot import Snapshot as Snapshot
from neurontools.model.snapshot import SourceKind as SourceKind
from neurontools.model.training import OperatorTime as OperatorTime
from neurontools.model.training import RecentSteps as RecentSteps
from neurontools.model.training import ScriptAdvice as ScriptAdvice
from neurontools.model.training import TrainingCounters as TrainingCounters
from neurontools.model.training import TrainingRates as TrainingRates
