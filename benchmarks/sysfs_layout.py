"""Measures finding the driver's files once, in the expected layout and in a moved one.

The tree has 16 devices with 128 physical cores. The references walk the tree of one device and of all devices.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from measuring import Figure, compile_sources, report
from neurond.sources.sysfs.tree_layout import TreeLayout

from neurontools.driver.devices import list_device_directories
from neurontools.driver.environment import Roots
from neurontools.testing import DriverTree

INSTANCE_TYPE = "trn2.48xlarge"
ROUNDS = 15
VERSION, GENERATION = (2, 31, 7, 0), 3
CORES = list(range(8))
RUBBISH_FILES = 20_000


def main() -> None:
    compile_sources()
    with DriverTree(INSTANCE_TYPE, driver_version="2.31.7.0") as tree:
        devices = [Path(directory.path) for directory in list_device_directories(tree.roots)]
        usual = _cpu_ms(lambda: _find(tree.roots))
        one = _cpu_ms(lambda: _walk(devices[:1]))
        every = _cpu_ms(lambda: _walk(devices))
        for device in devices:
            shutil.move(device / "stats", device / "telemetry")
            for core in device.glob("neuron_core*"):
                shutil.move(core / "stats", core / "telemetry")
        moved = _cpu_ms(lambda: _find(tree.roots))
        for device in devices:
            shutil.rmtree(device / "telemetry")
            for core in device.glob("neuron_core*"):
                shutil.rmtree(core / "telemetry")
        for device in devices:
            for part in range(20):
                (device / f"rubbish{part}").mkdir()
                for number in range(RUBBISH_FILES // 20 // 16):
                    (device / f"rubbish{part}/{number}").touch()
        rubbish = _cpu_ms(lambda: _find(tree.roots))
    report(
        "Finding the files of 16 devices with 128 physical cores, once",
        [
            Figure("all where they are expected", usual, "ms CPU", "at most 100"),
            Figure("all moved: one device looked through, the others compared", moved, "ms CPU", "at most 100"),
            Figure(f"rubbish: {RUBBISH_FILES} files of unknown names looked through", rubbish, "ms CPU", "at most 100"),
            Figure("beside it: os.walk of one device", one, "ms CPU"),
            Figure("beside it: os.walk of all devices", every, "ms CPU"),
        ],
    )


def _find(roots: Roots) -> None:
    layout = TreeLayout(VERSION, GENERATION)
    for directory in list_device_directories(roots):
        layout.places(directory, CORES)


def _walk(devices: list[Path]) -> None:
    for device in devices:
        for _ in os.walk(device):
            pass


def _cpu_ms(act: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        act()
        times.append((time.process_time() - began) * 1e3)
    return median(times)


if __name__ == "__main__":
    main()
