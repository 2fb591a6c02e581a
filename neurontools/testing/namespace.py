"""Runs a command with a driver's tree at the paths of the real driver.

    python -m neurontools.testing.namespace DIR COMMAND [ARGUMENT ...]

The command runs in its own mount namespace, so that other processes are not affected and nothing remains after its end.
It finds /sys/devices/virtual/neuron_device, /sys/class/neuron_device, /sys/module/neuron, /sys/class/dmi,
/sys/bus/pci/devices, /dev/neuron0 and following, and our commands in /opt/aws/neuron/bin. Needs root, or unprivileged
user namespaces.

sysfs does not allow new entries. So each directory that needs a new entry is covered by an in-memory directory with
bind mounts of the original entries and the tree's own entries. /dev/neuron0 is a character device with the driver's
number if the user may create devices (root may), otherwise a file. The device cannot be opened without the driver.
/proc is real except for the driver's line in /proc/devices, so processes are real.
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
# Directories to which the tree adds entries, with the same paths in the tree and in the system.
_COVERED = ("sys/devices/virtual", "sys/class", "sys/module")
_USAGE = "usage: python -m neurontools.testing.namespace DIR COMMAND [ARGUMENT ...]"

_libc = ctypes.CDLL(None, use_errno=True)


def enter(directory: str) -> None:
    """Moves this process into a mount namespace with the tree at the driver's paths.

    Raises UserError if this is not permitted. Call this in a single-threaded process, soon after a fork, because it
    can't be undone.
    """
    try:
        _enter(directory)
    except OSError as error:
        place = error.filename or directory  # OSError has no file name if write() failed
        raise UserError(f"{place}: {error.strerror}; run as root", EXIT_PERMISSION) from None


def main(arguments: Sequence[str]) -> int:
    """Replaces this process by the command. Returns an exit code only if the command can't be started."""
    if len(arguments) < 2 or arguments[0].startswith("-"):
        print(_USAGE, file=sys.stderr)  # noqa: T201
        return EXIT_USAGE
    command = arguments[1]
    try:
        enter(arguments[0])
        os.execv(_find_command(command), list(arguments[1:]))  # noqa: S606
    except UserError as error:
        print(f"neurontools.testing.namespace: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except OSError as error:
        print(f"neurontools.testing.namespace: {command}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 127


def _find_command(command: str) -> str:
    """Returns the path of a command. Raises FileNotFoundError if no directory of PATH has the command.

    This replaces `execvp`, which reports "Permission denied" for any failure if this user may not search one directory
    of PATH.
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
    """Covers a directory with a mount that has its entries and the added entries, which take precedence.

    Entries in `devices` become character devices, or plain files if this user may not create devices.
    """
    # The mount hides what is in `target`; open descriptors keep its entries reachable.
    directories = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in (target, added) if path.is_dir()]
    entries = {
        name: Path(f"/proc/self/fd/{descriptor}", name)
        for descriptor in directories
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
        for descriptor in directories:
            os.close(descriptor)


def _device_numbers(tree: Path) -> dict[str, int]:
    """Returns the device number of each device file in a tree, by name."""
    numbers = {}
    for path in (tree / "dev").iterdir():
        file = tree / "sys/devices/virtual/neuron_device" / path.name / "dev"
        if file.is_file():
            major, _, minor = file.read_text().strip().partition(":")
            numbers[path.name] = os.makedev(int(major), int(minor))
    return numbers


def _make_device(place: Path, number: int) -> bool:
    """Creates a character device that all users may open, like the driver's. Returns False if not permitted."""
    try:
        os.mknod(place, 0o666 | stat.S_IFCHR, number)
        place.chmod(0o666)
    except OSError:
        return False
    return True


def _add_to_proc_devices() -> None:
    """Adds the driver's line to /proc/devices at the position where the kernel lists it."""
    place = Path("/proc/devices")
    try:
        lines = place.read_text().splitlines(keepends=True)
    except OSError:
        return
    at = next((number for number, line in enumerate(lines) if not line.strip()), len(lines))
    staged = Path("/dev", ".neurontools-devices")  # /dev is in memory and belongs to this namespace only
    staged.write_text("".join((*lines[:at], f"{DEVICE_MAJOR:3d} neuron\n", *lines[at:])))
    staged.chmod(0o444)
    _bind(staged, place)
    staged.unlink()


def _add_commands() -> None:
    """Covers AWS's commands with our commands of the same names."""
    place = Path(_BIN)
    if not place.is_dir():
        top = Path("/opt")
        if not top.is_dir():  # if created here, /opt would remain on the host
            return
        _cover(top, Path("/nowhere"))
        place.mkdir(parents=True)
    else:
        _mount_memory(place)
    for name in _COMMANDS:
        own_command = Path(sys.executable).with_name(name)
        # Searches PATH, because this user may not be allowed to read the interpreter's directory.
        found = str(own_command) if os.access(own_command, os.X_OK) else shutil.which(name)
        if found is not None:
            (place / name).symlink_to(found)


def _bind(source: Path, target: Path) -> None:
    _mount(str(source), str(target), None, _MS_BIND | _MS_REC)


def _mount_memory(target: Path) -> None:
    # By default, a tmpfs has the mode of /tmp. In such a /dev, the kernel would refuse `> /dev/null`.
    _mount("tmpfs", str(target), "tmpfs", 0, "mode=755")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    def text(value: str | None) -> bytes | None:
        return None if value is None else os.fsencode(value)

    if _libc.mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), text(data)) != 0:
        cause = os.strerror(ctypes.get_errno())
        raise UserError(f"{source or 'none'} can't be mounted on {target} ({cause}); run as root", EXIT_PERMISSION)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
