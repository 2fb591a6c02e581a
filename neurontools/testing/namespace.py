"""Runs a command that sees a driver's tree where the driver has it.

    python -m neurontools.testing.namespace DIR COMMAND [ARGUMENT ...]

In a mount namespace of its own, so nobody else is affected and nothing is left behind. There the command finds
/sys/devices/virtual/neuron_device, /sys/class/neuron_device, /sys/module/neuron, /sys/class/dmi, /sys/bus/pci/devices,
/dev/neuron0 and following, and our commands in /opt/aws/neuron/bin. Needs root, or unprivileged user namespaces.

Directories of sysfs can't be added to, so those that need a new entry are covered: with an in-memory directory that has
everything the original has, bound from it, and the tree's own entries. /dev/neuron0 is a character device of the
driver's number where the user may make one (root may), which nobody can open, for there is no driver; else a file.
/proc stays as it is but for the driver's line in /proc/devices: processes are real ones.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from neurontools.driver.tree_export import DEVICE_MAJOR
from neurontools.util.errors import EXIT_PERMISSION, EXIT_USAGE, UserError

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_BIN = "/opt/aws/neuron/bin"
_COMMANDS = ("neuron-ls", "neuron-top", "neuron-monitor")
# Directories that get entries of the tree. Below the root of the tree and of the system they are called the same.
_COVERED = ("sys/devices/virtual", "sys/class", "sys/module")
_USAGE = "usage: python -m neurontools.testing.namespace DIR COMMAND [ARGUMENT ...]"

_libc = ctypes.CDLL(None, use_errno=True)


def enter(directory: str) -> None:
    """Moves this process into a namespace with the tree in place. UserError when that can't be had.

    To be called in a process with one thread, soon after a fork: there is no way back.
    """
    try:
        _enter(directory)
    except OSError as error:
        place = error.filename or directory  # a write that fails names no file
        raise UserError(f"{place}: {error.strerror}; run as root", EXIT_PERMISSION) from None


def main(arguments: Sequence[str]) -> int:
    """Runs the command in place of this process; returns only when that fails."""
    if len(arguments) < 2 or arguments[0].startswith("-"):
        print(_USAGE, file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    command = arguments[1]
    try:
        enter(arguments[0])
        os.execv(_found(command), list(arguments[1:]))  # noqa: S606
    except UserError as error:
        print(f"neurontools.testing.namespace: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except OSError as error:
        print(f"neurontools.testing.namespace: {command}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 127


def _found(command: str) -> str:
    """The path of a command; FileNotFoundError when PATH has none.

    `execvp` reports "Permission denied" for any failure if this user may not search one directory of PATH.
    """
    found = command if os.path.dirname(command) else shutil.which(command)  # noqa: PTH120
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command)
    return found


def _enter(directory: str) -> None:
    if not Path(directory, "sys/devices/virtual/neuron_device").is_dir():
        raise UserError(f"{directory} holds no tree of the driver; make one with neurond --export-sysfs", EXIT_USAGE)
    _unshare()
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    tree = Path(directory).absolute()
    for covered in _COVERED:
        _cover(Path("/", covered), tree / covered)
    if (tree / "sys/bus/pci/devices").is_dir() and Path("/sys/bus/pci/devices").is_dir():
        _bind(tree / "sys/bus/pci/devices", Path("/sys/bus/pci/devices"))
    devices = _device_numbers(tree)
    _cover(Path("/dev"), tree / "dev", devices)
    _add_to_proc_devices()
    _add_commands()


def _unshare() -> None:
    user, group = os.getuid(), os.getgid()
    if _libc.unshare(_CLONE_NEWNS) == 0:
        return
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS) != 0:
        cause = os.strerror(ctypes.get_errno())
        raise UserError(
            f"no mount namespace to be had ({cause}); run as root, or allow unprivileged user namespaces",
            EXIT_PERMISSION,
        )
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def _cover(target: Path, added: Path, devices: Mapping[str, int] | None = None) -> None:
    """Covers a directory with one that has its entries and those added, which win.

    Those that `devices` has a number for become character devices. A user who may not make any gets plain files.
    """
    # Held open: the tree itself may lie below what is covered.
    held = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in (target, added) if path.is_dir()]
    entries = {
        name: Path(f"/proc/self/fd/{descriptor}", name)
        for descriptor in held
        for name in os.listdir(f"/proc/self/fd/{descriptor}")  # noqa: PTH208
    }
    try:
        _mount_memory(target)
        for name, source in sorted(entries.items()):
            place = target / name
            if source.is_symlink():
                place.symlink_to(source.readlink())
                continue
            if devices is not None and name in devices and _make_device(place, devices[name]):
                continue
            if source.is_dir():
                place.mkdir()
            else:
                place.touch()
            _bind(source, place)
    finally:
        for descriptor in held:
            os.close(descriptor)


def _device_numbers(tree: Path) -> dict[str, int]:
    """The device number of each device file of a tree, by its name."""
    numbers = {}
    for path in (tree / "dev").iterdir():
        file = tree / "sys/devices/virtual/neuron_device" / path.name / "dev"
        if file.is_file():
            major, _, minor = file.read_text().strip().partition(":")
            numbers[path.name] = os.makedev(int(major), int(minor))
    return numbers


def _make_device(place: Path, number: int) -> bool:
    """Makes a character device that everybody may open, as the driver's are; False where we may not."""
    try:
        os.mknod(place, 0o666 | stat.S_IFCHR, number)
        place.chmod(0o666)
    except OSError:
        return False
    return True


def _add_to_proc_devices() -> None:
    """Puts the driver's line into /proc/devices, where the kernel lists it; what else is there stays."""
    place = Path("/proc/devices")
    try:
        lines = place.read_text().splitlines(keepends=True)
    except OSError:
        return
    at = next((number for number, line in enumerate(lines) if not line.strip()), len(lines))
    staged = Path("/dev", ".neurontools-devices")  # in memory, and this namespace's alone
    staged.write_text("".join((*lines[:at], f"{DEVICE_MAJOR:3d} neuron\n", *lines[at:])))
    staged.chmod(0o444)
    _bind(staged, place)
    staged.unlink()


def _add_commands() -> None:
    """Puts our commands where AWS's are installed, in place of those."""
    place = Path(_BIN)
    if not place.is_dir():
        top = Path("/opt")
        if not top.is_dir():  # it can't be made without being left behind
            return
        _cover(top, Path("/nowhere"))
        place.mkdir(parents=True)
    else:
        _mount_memory(place)
    for name in _COMMANDS:
        beside = Path(sys.executable).with_name(name)
        # This user may lack permission for the interpreter's directory.
        found = str(beside) if os.access(beside, os.X_OK) else shutil.which(name)
        if found is not None:
            (place / name).symlink_to(found)


def _bind(source: Path, target: Path) -> None:
    _mount(str(source), str(target), None, _MS_BIND | _MS_REC)


def _mount_memory(target: Path) -> None:
    # Left open to all, as it is by default, /dev would be like /tmp, where the kernel refuses `> /dev/null`.
    _mount("tmpfs", str(target), "tmpfs", 0, "mode=755")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    def text(value: str | None) -> bytes | None:
        return None if value is None else os.fsencode(value)

    if _libc.mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), text(data)) != 0:
        cause = os.strerror(ctypes.get_errno())
        raise UserError(f"{source or 'none'} can't be mounted on {target} ({cause}); run as root", EXIT_PERMISSION)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
