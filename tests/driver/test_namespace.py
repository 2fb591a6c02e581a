"""Unmodified programs see the tree where the driver has it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from neurontools.testing import DriverTree
from tests.harness.waiting import run_to_end

NOBODY = 65534
# As root this steps down to a user without privileges, who could not read an interpreter in root's home: so what is
# needed is imported before. Stepping down makes /proc/self root's, which a new program of that user's would not be.
_ENTER = """
import ctypes, os, shutil, sys
from neurontools.testing import namespace
user = int(sys.argv.pop(1))
sys.executable = os.environ.get("PRETENDED_EXECUTABLE", sys.executable)
if user != os.getuid():
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
raise SystemExit(namespace.main(sys.argv[1:]))
"""


def _namespaces_to_be_had(user: int) -> bool:
    step_down = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user != os.getuid() else []
    flags = ["--mount"] if user == 0 else ["--mount", "--user", "--map-root-user"]
    done = subprocess.run([*step_down, "unshare", *flags, "true"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture(params=[os.getuid(), NOBODY] if os.getuid() == 0 else [os.getuid()], ids=lambda user: f"uid{user}")
def user(request: pytest.FixtureRequest) -> int:
    """Whoever runs the tests and, where that is root, a user without any privilege."""
    found: int = request.param
    if not _namespaces_to_be_had(found):
        pytest.skip(f"this kernel gives user {found} no mount namespaces")
    return found


@pytest.fixture
def tree() -> Iterator[DriverTree]:
    with DriverTree("trn1.2xlarge") as made:
        Path(made.directory).parent.chmod(0o755)  # a temporary directory is its maker's alone
        yield made


def _command(tree: DriverTree, user: int, *command: str) -> list[str]:
    return [sys.executable, "-c", _ENTER, str(user), tree.directory, *command]


def _run(tree: DriverTree, user: int, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    told = os.environ | environment
    return run_to_end(_command(tree, user, *command), env=told)


def test_programs_see_the_tree_and_everything_else(tree: DriverTree, user: int) -> None:
    def outside() -> object:
        return [sorted(Path(path).iterdir()) for path in ("/sys/class", "/opt")], Path("/dev/neuron0").exists()

    before = outside()
    done = _run(
        tree,
        user,
        "sh",
        "-c",
        "id -u; cat /sys/class/neuron_device/neuron0/core_count; cat /sys/devices/virtual/neuron_device/neuron0/dev;"
        "cat /sys/module/neuron/version /sys/class/dmi/id/product_name; ls /dev/neuron0; echo x > /dev/null;"
        "test -e /sys/class/net && test -e /sys/module && ls /opt/aws/neuron/bin >/dev/null && echo complete",
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["0", "2240:0", "2.30.2.0", "trn1.2xlarge", "/dev/neuron0", "complete"]
    assert outside() == before


def test_counters_move_inside(tree: DriverTree, user: int) -> None:
    counter = f"{tree.core_path(0)}/stats/other_info/flop_count/total".replace(tree.directory, "")
    script = f"cat {counter}; echo ready; read go; cat {counter}"
    with subprocess.Popen(
        _command(tree, user, "sh", "-c", script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["0\n", "ready\n"]
        tree.set_core(0, flop_total=42)
        assert process.communicate("go\n")[0] == "42\n"


def test_the_device_files_are_those_of_the_driver_where_the_user_may_make_them(tree: DriverTree, user: int) -> None:
    done = _run(tree, user, "sh", "-c", "stat -c '%F %t:%T %a' /dev/neuron0; cat /proc/devices; ls -a /dev")
    kind, *lines = done.stdout.splitlines()
    made = "character special file f0:0 666" if user == 0 and _may_make_devices() else "regular empty file 0:0 666"
    assert (kind, done.stderr) == (made, "")
    end = lines.index("Block devices:")
    assert [line for line in lines[:end] if line.endswith(" neuron")] == ["240 neuron"]
    assert set(Path("/proc/devices").read_text().splitlines()) <= {*lines}
    assert "neuron" not in Path("/proc/devices").read_text().split()
    assert not [name for name in lines if "neurontools" in name]


def _may_make_devices() -> bool:
    with tempfile.TemporaryDirectory() as directory:
        try:
            os.mknod(f"{directory}/device", 0o600 | stat.S_IFCHR, os.makedev(240, 0))
        except OSError:
            return False
    return True


def test_errors_are_one_line_and_tell_what_is_wrong(tree: DriverTree, user: int, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for program, cause in (("/no/such", "No such file or directory"), (str(tmp_path / "file"), "Permission denied")):
        done = _run(tree, user, program)
        assert (done.returncode, done.stderr) == (127, f"neurontools.testing.namespace: {program}: {cause}\n")
    command = [sys.executable, "-m", "neurontools.testing.namespace", str(tmp_path), "true"]
    done = run_to_end(command)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "holds no tree of the driver" in done.stderr


def test_where_the_user_may_not_look_is_no_error_of_the_command(tree: DriverTree, user: int, tmp_path: Path) -> None:
    """Our interpreter and directories of PATH may lie in somebody's home; a tree may not, and is what is told of."""
    closed = tmp_path / "closed"
    closed.mkdir(0o700)
    path = f"{closed}:/usr/bin:/bin"
    done = _run(tree, user, "sh", "-c", "echo ran", PATH=path, PRETENDED_EXECUTABLE=str(closed / "python"))
    assert (done.stdout, done.stderr) == ("ran\n", "")
    done = _run(tree, user, "nosuchcommand", PATH=path)
    assert done.stderr == "neurontools.testing.namespace: nosuchcommand: No such file or directory\n"
    Path(tree.directory).parent.chmod(0o700)
    done = _run(tree, user, "sh", "-c", "echo ran", PATH=path)
    if user == NOBODY:
        assert done.stderr.startswith(f"neurontools.testing.namespace: {tree.directory}")
        assert "Permission denied" in done.stderr
    else:
        assert done.stdout == "ran\n"
