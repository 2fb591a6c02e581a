"""`torch_neuronx.analyze`: the operators of a model, and those that the compiler does not support.

Source: "PyTorch NeuronX Analyze API for Inference" of the AWS Neuron documentation.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch

from neurontools.runtime.inference.recording import NotTraceable, UntracedOperators, record_function
from neurontools.runtime.inference.structure import as_arguments
from neurontools.runtime.launch.import_hook import VERSIONS
from neurontools.runtime.tensors.device import device
from neurontools.util.version import __version__


def analyze(
    func: Callable[..., Any],
    example_inputs: Any,
    compiler_workdir: Any = None,
    additional_ignored_ops: Iterable[str] = (),
    max_workers: int = 4,
    is_hf_transformers: bool = False,
    cleanup: bool = False,
) -> dict[str, Any]:
    """Returns the supported operators with their counts, and the unsupported ones, under the keys of torch_neuronx.

    The counts are those of torch.jit.trace on the CPU, without `additional_ignored_ops`. The other arguments have no
    effect.
    """
    del compiler_workdir, max_workers, is_hf_transformers, cleanup
    arguments = as_arguments(example_inputs)
    ignored = {*additional_ignored_ops}
    nodes = [node for node in _operator_nodes(func, arguments) if node.kind() not in ignored]
    unsupported = _unsupported(func, arguments) - ignored
    counts = Counter(node.kind() for node in nodes if node.kind() not in unsupported)
    failed = [node for node in nodes if node.kind() in unsupported]
    listed = [
        {"kind": node.kind(), "failureAt": "neuronx-cc", "call": node.sourceRange(), "opGraph": str(node).rstrip()}
        for node in failed
    ]
    hidden = unsupported - {node.kind() for node in failed}
    listed += [{"kind": kind, "failureAt": "Lowering to HLO", "call": "", "opGraph": ""} for kind in sorted(hidden)]
    total = counts.total() + len(listed)
    return {
        "torch_neuronx_version": VERSIONS["torch_neuronx"],
        "neuronx_cc_version": f"{__version__}+neurontools",
        "support_percentage": f"{100 * counts.total() / total if total else 100:.2f}%",
        "supported_operators": dict(counts),
        "unsupported_operators": listed,
    }


def _operator_nodes(func: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation of TorchScript, and warnings that `trace` repeats
        traced: Any = torch.jit.trace(func, arguments, check_trace=False, strict=False)
    graph = traced.inlined_graph
    return [node for node in graph.nodes() if node.kind().startswith("aten::")]


def _unsupported(func: Callable[..., Any], arguments: tuple[Any, ...]) -> set[str]:
    """Returns the names of operators that can't be compiled, such as `aten::nonzero`, without their overloads."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            record_function(func, arguments, device.current)
    except UntracedOperators as error:
        return {name.partition(".")[0] for name in error.operators}
    except NotTraceable:
        return {"aten::_to_copy"}
    return set()
