"""A package whose own code runs when somebody asks it for a name."""

from __future__ import annotations

import os
import subprocess
import sys

import neurontools.model
from neurontools.light import late_package

SCRIPT = """
import sys
import neurontools
from neurontools.light import late_package
late_package.install("neurontools.model")
from neurontools.model.brief import time_text
print("neurontools.model.snapshot" in sys.modules)
from neurontools.model import Snapshot, latency
import neurontools.model.snapshot
print(Snapshot is neurontools.model.snapshot.Snapshot, latency.__name__, type(neurontools.model).__name__)
try:
    neurontools.model.nothing
except AttributeError as error:
    print(error)
"""


def test_its_code_runs_when_a_name_of_it_is_asked_for() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", SCRIPT],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, done.stdout.splitlines()) == (
        "",
        [
            "False",
            "True neurontools.model.latency module",
            "module 'neurontools.model' has no attribute 'nothing'",
        ],
    )


def test_one_that_was_imported_stays() -> None:
    late_package.install("neurontools.model")
    assert sys.modules["neurontools.model"] is neurontools.model
