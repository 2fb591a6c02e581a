"""`neuron_parallel_compile`: compiles the graphs of a training script into the cache without executing them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from neurontools.cli.run import summary
from neurontools.driver.environment import SUMMARY_DIRECTORY
from neurontools.util.command_lifecycle import run_command, write_stderr, write_text
from neurontools.util.errors import EXIT_USAGE, UserError

_NAME = "neuron_parallel_compile"
_TAG = "INFO ||NEURON_PARALLEL_COMPILE||:"
_COMMANDS = ("collect", "compile", "clear-locks", "clean")
_WITH_VALUE = ("--command", "--num_parallel", "--compile-workdir")
_HELP = f"""\
usage: {_NAME} [--command collect] command [argument …]

Runs a command, such as "torchrun --nproc_per_node=2 train.py --steps 10", in which each graph is compiled into the
compile cache and none is executed: all results are zeros. A run after it finds its graphs there.

  --command COMMAND      collect (which compiles too); there is nothing left to do for compile and clear-locks
  --num_parallel N       accepted; each worker compiles its own graphs
  --compile-workdir DIR  accepted; NEURON_COMPILE_CACHE_URL says where the cache is
  -h, --help             print this text
"""


def main() -> None:
    run_command(_NAME, _run_parallel_compile)


def _run_parallel_compile(arguments: list[str]) -> int:
    given, command = _split_options(arguments)
    if "--help" in given:
        write_text(_HELP)
        return 0
    action = given.get("--command", "collect")
    if action not in _COMMANDS:
        raise UserError(f"--command {action!r}: give one of {', '.join(_COMMANDS)}", EXIT_USAGE)
    if action == "clean":
        raise UserError(
            "--command clean: the cache may be others' too; remove the directory that NEURON_COMPILE_CACHE_URL names"
        )
    if action != "collect":
        write_stderr(
            f"{_TAG} {action}: nothing to do: graphs are compiled as they are collected, locks end with their owners"
        )
        return 0
    if not command:
        raise UserError(f"no command given; usage: {_NAME} command [argument …]", EXIT_USAGE)
    with tempfile.TemporaryDirectory(prefix="neuron-parallel-compile-", ignore_cleanup_errors=True) as directory:
        exit_code = _compile_graphs(command, directory)
        workers = summary.read_workers(Path(directory))
    compiled = sum(worker["graphs_compiled_total"] for worker in workers)
    write_stderr(f"{_TAG} {compiled} graphs compiled by {len(workers)} process(es), exit code {exit_code}")
    return exit_code


def _compile_graphs(command: list[str], directory: str) -> int:
    environment = {
        **os.environ,
        "NEURON_EXTRACT_GRAPHS_ONLY": "1",
        "NEURONTOOLS_RUNTIME": "1",
        SUMMARY_DIRECTORY: directory,
    }
    try:
        exit_code = subprocess.run(command, env=environment, check=False).returncode
    except OSError as error:
        raise UserError(f"{command[0]}: {error.strerror}; give a command that can be run") from None
    return exit_code if exit_code >= 0 else 128 - exit_code


def _split_options(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Splits the command line into our options, and the command to run with its arguments."""
    given: dict[str, str] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        name, has_value, value = rest.pop(0).partition("=")
        if name in ("-h", "--help"):
            given["--help"] = ""
        elif name in _WITH_VALUE:
            if not has_value and not rest:
                raise UserError(f"{name}: no value given; see {_NAME} --help", EXIT_USAGE)
            given[name] = value if has_value else rest.pop(0)
        else:
            raise UserError(f"{name}: no such option; see {_NAME} --help")
    return given, rest


if __name__ == "__main__":
    main()
