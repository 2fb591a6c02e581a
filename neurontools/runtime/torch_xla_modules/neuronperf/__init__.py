"""neuronperf on simulated NeuronCores: measures traced models. Import `neuronperf.torch` to compile and benchmark.

Source: "NeuronPerf API", "NeuronPerf Benchmark Guide" and "NeuronPerf Model Index Guide" of the AWS Neuron
documentation. Latencies and throughputs are those of this host's vCPUs, not of hardware.
"""

from __future__ import annotations

from neurontools.runtime.launch.import_hook import VERSIONS

from . import model_index as model_index
from .reporting import get_reports as get_reports
from .reporting import print_reports as print_reports
from .reporting import write_csv as write_csv
from .reporting import write_json as write_json

__version__ = VERSIONS["neuronperf"]
