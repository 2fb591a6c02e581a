"""The processes on the devices, found in /proc: tracked from round to round and shown as the snapshot does."""

from __future__ import annotations

from neurond.sources.sysfs.owner_tracker import OwnerTracker
from neurond.sources.sysfs.pacing import Pacing
from neurontools.driver.devices import DeviceDirectory
from neurontools.driver.environment import Roots
from neurontools.driver.process_context import FoundProcess, HeldCores
from neurontools.driver.processes import OpenDevices, OwnerScan, read_boot_time
from neurontools.model import Instance, Process

# A process may load the runtime after it opened its first device: for so many rounds it is asked again.
_UNDECIDED_ROUNDS = 30


class FoundProcesses:
    """Call `refresh` once a round. `holding` is who holds which cores, as of the latest one."""

    def __init__(self, roots: Roots, directories: list[DeviceDirectory], pacing: Pacing) -> None:
        self._roots = roots
        self._pacing = pacing
        self._tracker = OwnerTracker(OwnerScan(roots, directories), pacing)
        self._known: dict[int, FoundProcess] = {}
        self._rounds: dict[int, int] = {}
        self._boot = read_boot_time(roots.proc)
        self._is_first = True
        self.holding = HeldCores((), 1, 1)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to tell when processes could not be looked into."""
        return self._tracker.warnings

    def use(self, directories: list[DeviceDirectory]) -> None:
        """Goes on with these devices."""
        self._tracker.use(OwnerScan(self._roots, directories))

    def refresh(self, instance: Instance) -> tuple[Process, ...]:
        """The processes now, by PID."""
        self._tracker.refresh(whole=self._is_first)
        self._is_first = False
        owners = self._tracker.owners
        self._known = {pid: known for pid, known in self._known.items() if any(pid == own.pid for own in owners)}
        self._rounds = {pid: self._rounds[pid] for pid in self._known}
        found = []
        for devices in owners:
            process = self._process(devices)
            times = process.times()
            if times is None:  # another process has the PID by now, or none
                del self._known[process.pid]
                process = self._process(devices)
                times = process.times()
                if times is None:
                    continue
            found.append((process, devices, times))
            self._pacing.step()
        lnc = instance.logical_neuroncore_config
        self.holding = HeldCores([part[:2] for part in found], instance.physical_cores_per_device, lnc)
        return tuple(
            process.record(
                devices,
                self.holding.cores.get(process.pid, ()),
                process.pid in self.holding.inferred_pids,
                lnc,
                self._boot,
                times,
            )
            for process, devices, times in found
        )

    def _process(self, devices: OpenDevices) -> FoundProcess:
        process = self._known.get(devices.pid)
        if process is None:
            process = self._known[devices.pid] = FoundProcess(self._roots.proc, devices.pid)
            self._rounds[devices.pid] = 0
        elif not process.uses_runtime and self._rounds[devices.pid] < _UNDECIDED_ROUNDS:
            self._rounds[devices.pid] += 1
            process.reread()
        return process
