"""Lightning in a worker of torchrun or of neuron-run: the workers are there, and nobody has to start them.

Lightning's strategies for XLA always bring a launcher that starts workers and waits for what the first of them returns.
Where torchrun made the workers, each would wait for a worker of its own. Without a launcher they train as those of
Lightning's other strategies under torchrun, and `Fabric.launch()` needs no function either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neurontools.runtime.torch_device.when_imported import when_imported

_STRATEGIES = (
    ("fabric", "xla", "XLAStrategy"),
    ("fabric", "xla_fsdp", "XLAFSDPStrategy"),
    ("pytorch", "xla", "XLAStrategy"),
)


def install(environment: Mapping[str, str]) -> None:
    """Changes the strategies when a script imports them; once a process."""
    for part, module, strategy in _STRATEGIES:
        change = _without_launcher(strategy, environment)
        for package in (f"lightning.{part}", {"fabric": "lightning_fabric", "pytorch": "pytorch_lightning"}[part]):
            when_imported(f"{package}.strategies.{module}", change)


def _without_launcher(strategy: str, environment: Mapping[str, str]) -> Callable[[Any], None]:
    def change(module: Any) -> None:
        made = getattr(module, strategy, None)
        if made is None:
            return
        configure = made._configure_launcher

        def configure_launcher(self: Any) -> None:
            if "RANK" not in environment:
                configure(self)

        made._configure_launcher = configure_launcher

    return change
