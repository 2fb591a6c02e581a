"""Entry points of the commands. Each entry point imports its command only when called."""

from __future__ import annotations

from neurontools.util.command_lifecycle import run_module


def neuron_run() -> None:
    run_module("neurontools.cli.run.command")


def neuron_parallel_compile() -> None:
    run_module("neurontools.cli.run.parallel_compile")


def neuron_monitor() -> None:
    run_module("neurontools.cli.monitor.command")


def neuron_monitor_prometheus() -> None:
    run_module("neurontools.cli.monitor.prometheus")


def neuron_doctor() -> None:
    run_module("neurontools.cli.doctor.command")


def neuron_profile() -> None:
    run_module("neurontools.cli.profile.command")


def neuron_fault() -> None:
    run_module("neurontools.cli.fault.command")


def neuron_mcp() -> None:
    run_module("neurontools.cli.mcp.command")


def nccom_test() -> None:
    run_module("neurontools.cli.nccom.command")
