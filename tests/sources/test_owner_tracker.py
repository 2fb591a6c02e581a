from __future__ import annotations

from pathlib import Path

from neurond.sources.sysfs.owner_tracker import OwnerTracker
from neurond.sources.sysfs.pacing import Pacing

from neurontools.sysfs.device_directory import DeviceDirectory
from neurontools.sysfs.owners import OpenDevices, OwnerScan
from neurontools.sysfs.roots import Roots


def _process(proc: Path, pid: int, *targets: str) -> Path:
    directory = proc / str(pid) / "fd"
    directory.mkdir(parents=True, exist_ok=True)
    for number, target in enumerate(targets):
        (directory / str(number)).symlink_to(target)
    return directory


def _tracker(proc: Path) -> OwnerTracker:
    directories = [DeviceDirectory(index, index, f"/nowhere/{index}", None) for index in range(2)]
    return OwnerTracker(OwnerScan(Roots(proc=str(proc), dev=str(proc)), directories), Pacing())


def test_all_are_found_in_a_whole_round(tmp_path: Path) -> None:
    for pid in range(1, 300):
        _process(tmp_path, pid, "/dev/neuron1" if pid % 100 == 0 else "/dev/null")
    tracker = _tracker(tmp_path)
    tracker.refresh(whole=True)
    assert tracker.owners == [OpenDevices(100, (1,)), OpenDevices(200, (1,))]
    assert (tracker.warnings, tracker.sees_all) == ((), True)


def test_one_that_opens_a_device_late_in_life_is_found_in_turn(tmp_path: Path) -> None:
    for pid in range(1, 50):
        _process(tmp_path, pid, "/dev/null")
    tracker = _tracker(tmp_path)
    for _ in range(200):  # long enough that nobody is young any more
        tracker.refresh()
    (tmp_path / "30/fd/7").symlink_to("/dev/neuron0")
    rounds = 0
    while not tracker.owners:
        tracker.refresh()
        rounds += 1
        assert rounds < 100
    (tmp_path / "30/fd/7").unlink()
    tracker.refresh()  # an owner is looked at in every round
    assert tracker.owners == []


def test_one_that_ends_is_gone_at_once(tmp_path: Path) -> None:
    directory = _process(tmp_path, 5, "/dev/neuron0")
    tracker = _tracker(tmp_path)
    tracker.refresh(whole=True)
    assert tracker.owners == [OpenDevices(5, (0,))]
    (directory / "0").unlink()
    directory.rmdir()
    directory.parent.rmdir()
    tracker.refresh()
    assert tracker.owners == []
