"""What commands that have to be quick do not import."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.harness.paths import ROOT
from tests.harness.profiles import write
from tests.harness.running_daemon import RunningDaemon
from tests.harness.trained_profiles import trained
from tests.harness.waiting import run_to_end

LIBRARIES = {"torch", "textual", "grpc", "pydantic", "google.protobuf", "numpy"}
STANDARD = {"argparse", "enum", "inspect", "json", "re", "typing", "dataclasses", "pathlib", "socket", "subprocess"}


def imported(*command: object) -> set[str]:
    """The modules that Python imports for a command, which ends well, without site-packages' own."""
    done = run_to_end(
        [sys.executable, "-S", "-X", "importtime", *map(str, command)],
        env={"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        check=True,
    )
    return {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines()}


@pytest.mark.parametrize(
    ("command", "slow"),
    [
        (("scripts/neuron-ls", "-wj", "--socket", "@"), STANDARD | LIBRARIES),
        (
            ("scripts/neuron-healthcheck", "--socket", "@"),
            {"enum", "functools", "inspect", "re", "typing", "signal", "neurontools.model.snapshot", "subprocess"}
            | LIBRARIES,
        ),
        (
            ("scripts/neuron-diag", "--socket", "@"),
            {"inspect", "typing", "neurontools.model.snapshot", "neurontools.catalog", "subprocess"} | LIBRARIES,
        ),
        (("-m", "neurontools.cli.profile.command", "show", "%"), LIBRARIES),
        (
            ("-m", "neurontools.cli.run.command", "--help"),
            {"importlib.metadata", "neurontools.catalog", "neurontools.estimate", "neurontools.model"} | LIBRARIES,
        ),
    ],
)
def test_nothing_slow_is_imported(
    shared_daemon: RunningDaemon, tmp_path: Path, command: tuple[str, ...], slow: set[str]
) -> None:
    profile = tmp_path / "a.neuronprofile"
    write(profile, trained(2)[0])
    places = {"@": shared_daemon.socket, "%": profile}
    found = imported(*(places.get(word, ROOT / word if "/" in word else word) for word in command))
    assert "neurontools" in found
    assert not found & slow
