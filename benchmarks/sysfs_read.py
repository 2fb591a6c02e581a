"""Measures reading a tree of 16 devices with 128 physical cores, beside bare reads of the same files.

The tree is in memory, and a second daemon changes it during the reading. Files of such a tree can be replaced, so each
read first checks its file; in sysfs this check is not needed. Both are measured. NEURONTOOLS_TICKS is the number of
ticks over which memory is watched (default: 10,000).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import psutil
from measuring import Figure, compile_sources, installed, interleaved_medians_ms, report, resident_mib
from neurond.sources.sysfs import SysfsSource
from neurond.sources.sysfs.device_reader import CounterFiles

from neurontools.testing import DriverTree, SimulatedDriver, process_on

INSTANCE_TYPE = "trn2.48xlarge"
ROUNDS = 60
TICKS = int(os.environ.get("NEURONTOOLS_TICKS", "10000"))


def main() -> None:
    compile_sources()
    with SimulatedDriver(INSTANCE_TYPE, scenario="steady", interval_seconds=1.0) as driver:
        source = SysfsSource(driver.roots)
        source.refresh()
        files = source.counter_files
        _pop_call_count(files)
        looking = _cpu_ms(source.refresh)
        looking_calls = _pop_call_count(files) / ROUNDS
        for each in files:
            each.may_be_replaced = False
        trusting = _cpu_ms(source.refresh)
        trusting_calls = _pop_call_count(files) / ROUNDS
        descriptors = [descriptor for each in files for descriptor in each.open_descriptors]
        bare = _cpu_ms(lambda: [os.pread(descriptor, 64, 0) for descriptor in descriptors])
        for each in files:
            each.may_be_replaced = True
        memory = psutil.Process()
        for _ in range(TICKS // 10):
            source.refresh()
        early_mib = resident_mib(memory)
        for _ in range(TICKS - TICKS // 10):
            source.refresh()
        late_mib = resident_mib(memory)
        open_files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        source.close()
    report(
        f"A full read of {INSTANCE_TYPE}: 16 devices, 128 physical cores, {len(descriptors)} files",
        [
            Figure("in sysfs: files kept open, pread alone", trusting, "ms CPU", "at most 25"),
            Figure("in sysfs: system calls on counter files", trusting_calls, ""),
            Figure("elsewhere: fstat and pread", looking, "ms CPU", "at most 25"),
            Figure("elsewhere: system calls on counter files", looking_calls, ""),
            Figure("bare preads of the same files", bare, "ms CPU"),
            Figure(f"memory after {TICKS // 10} ticks", early_mib, "MiB"),
            Figure(f"memory after {TICKS} ticks", late_mib, "MiB"),
            Figure("files open", open_files, ""),
        ],
    )
    _report_ls()


def _pop_call_count(files: list[CounterFiles]) -> int:
    """Returns the number of system calls since the previous call of this function."""
    return sum(each.pop_call_count() for each in files)


def _cpu_ms(read: Callable[[], object]) -> float:
    """Returns the median CPU time of a read, in milliseconds."""
    times = []
    for _ in range(ROUNDS):
        before = time.thread_time()
        read()
        times.append(1000 * (time.thread_time() - before))
    return median(times)


def _report_ls() -> None:
    with DriverTree("trn1.32xlarge") as tree:
        tree.set_processes(
            *(process_on(5000 + core, "train", cores=(core,), runtime_version="2.34.10") for core in range(32))
        )
        environment = {**os.environ, **tree.environment, "XDG_RUNTIME_DIR": tree.directory}
        run = partial(subprocess.run, env=environment, stdout=subprocess.DEVNULL, check=True)
        medians = interleaved_medians_ms(
            {
                "python -c pass": lambda: run([sys.executable, "-c", "pass"]),
                "neuron-ls": lambda: run([installed("neuron-ls")]),
                "neuron-ls -j": lambda: run([installed("neuron-ls"), "-j"]),
            },
            ROUNDS // 2,
        )
    bare = medians["python -c pass"]
    report(
        "neuron-ls without a daemon, 16 devices and 32 processes",
        [
            *(Figure(name, value, "ms") for name, value in medians.items()),
            Figure("neuron-ls / bare interpreter", medians["neuron-ls"] / bare, "times", "at most 3"),
            Figure("neuron-ls -j / bare interpreter", medians["neuron-ls -j"] / bare, "times", "at most 3"),
        ],
    )


if __name__ == "__main__":
    main()
