"""Measures the start of neuron-ls beside a bare interpreter and one that imports grpc."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial

from measuring import Figure, compile_sources, daemon, installed, interleaved_medians_ms, report

ROUNDS = 40
AT_ONCE = 200


def main() -> None:
    compile_sources()
    with daemon("--simulate", "trn1.32xlarge", "--load", "steady") as running:
        environment = {**os.environ, "NEURONTOOLS_SOCKET": running.socket}

        def run(*command: str) -> None:
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)

        medians = interleaved_medians_ms(
            {
                "python -c pass": partial(run, sys.executable, "-c", "pass"),
                "neuron-ls": partial(run, installed("neuron-ls")),
                "neuron-ls -j": partial(run, installed("neuron-ls"), "-j"),
                "neuron-healthcheck": partial(run, installed("neuron-healthcheck")),
                "neuron-diag": partial(run, installed("neuron-diag")),
                "python -c 'import grpc'": partial(run, sys.executable, "-c", "import grpc"),
            },
            ROUNDS,
        )
        started = time.perf_counter()
        children = [
            subprocess.Popen([installed("neuron-ls"), "-j"], env=environment, stdout=subprocess.PIPE)
            for _ in range(AT_ONCE)
        ]
        outputs = {child.communicate()[0] for child in children}
        failed = sum(child.returncode != 0 for child in children)
        at_once_seconds = time.perf_counter() - started
    bare = medians["python -c pass"]
    report(
        "neuron-ls on trn1.32xlarge with 32 processes, against a running daemon",
        [
            *(Figure(name, value, "ms") for name, value in medians.items()),
            Figure("neuron-ls / bare interpreter", medians["neuron-ls"] / bare, "times", "at most 1.2"),
            Figure("neuron-ls -j / bare interpreter", medians["neuron-ls -j"] / bare, "times", "at most 1.2"),
            Figure("neuron-healthcheck / bare interpreter", medians["neuron-healthcheck"] / bare, "times"),
            Figure(
                "neuron-diag / neuron-healthcheck",
                medians["neuron-diag"] / medians["neuron-healthcheck"],
                "times",
                "at most 2",
            ),
            Figure(
                "import grpc / neuron-ls",
                medians["python -c 'import grpc'"] / medians["neuron-ls"],
                "times",
                "at least 3",
            ),
            Figure(f"{AT_ONCE} neuron-ls at once: failed", failed, ""),
            Figure(f"{AT_ONCE} neuron-ls at once: different outputs", len(outputs), ""),
            Figure(f"{AT_ONCE} neuron-ls at once", at_once_seconds, "s"),
        ],
    )


if __name__ == "__main__":
    main()
