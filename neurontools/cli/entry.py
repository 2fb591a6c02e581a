"""Entry points of the commands. Each imports its command only when it runs."""

from __future__ import annotations

from neurontools.util.command_lifecycle import run_module


def neuron_run() -> None:
    """`neuron-run`."""
    run_module("neurontools.cli.run.command")


def neuron_parallel_compile() -> None:
    """`neuron_parallel_compile`."""
    run_module("neurontools.cli.run.parallel_compile")


def neuron_monitor() -> None:
    """`neuron-monitor`."""
    run_module("neurontools.cli.monitor.command")


def neuron_monitor_prometheus() -> None:
    """`neuron-monitor-prometheus`."""
    run_module("neurontools.cli.monitor.prometheus")


def neuron_doctor() -> None:
    """`neuron-doctor`."""
    run_module("neurontools.cli.doctor.command")


def neuron_profile() -> None:
    """`neuron-profile`."""
    run_module("neurontools.cli.profile.command")


def neuron_fault() -> None:
    """`neuron-fault`."""
    run_module("neurontools.cli.fault.command")
