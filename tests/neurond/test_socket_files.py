from __future__ import annotations

import grp
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from neurond.service.socket_files import SocketFiles

from neurontools.errors import EXIT_PERMISSION, EXIT_USAGE, UserError
from tests.harness import python_process
from tests.harness.running_daemon import Attachment, StartDaemon
from tests.harness.waiting import HANG_SECONDS, wait_until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")


def neurond(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A daemon that is expected not to start."""
    return python_process.run(
        [sys.executable, "-m", "neurond", "--simulate", "trn1.2xlarge", *flags],
        loaded=python_process.MONITORS,
        encoding="utf-8",
        env=os.environ | environment,
        timeout=HANG_SECONDS,
    )


def as_nobody(group: int, code: str) -> str:
    """What code says that runs as a user without any rights but those of a group."""
    become = f"import os; os.setgroups([]); os.setgid({group}); os.setuid(65534)"
    imports = "import neurond.service.socket_files"
    done = subprocess.run(
        [sys.executable, "-c", f"{imports}\n{become}\n{code}"], capture_output=True, text=True, check=True
    )
    return done.stdout


def mode(path: Path | str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def files_of(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.suffix != ".log"}


def test_sockets_are_for_this_user_alone(start_daemon: StartDaemon, socket_directory: Path) -> None:
    (socket_directory / "made").mkdir(mode=0o700)
    daemon = start_daemon(name="made/n.sock")
    assert mode(daemon.socket) == mode(f"{daemon.socket}.attach") == mode(f"{daemon.socket}.lock") == 0o600
    assert mode(socket_directory / "made") == 0o700


def test_a_directory_that_has_to_be_made_is_for_this_user_alone(
    start_daemon: StartDaemon, socket_directory: Path
) -> None:
    daemon = start_daemon(
        "--simulate", "trn1.2xlarge", "--socket", f"{socket_directory}/a/b/n.sock"
    )  # the later --socket counts
    assert mode(socket_directory / "a" / "b") == 0o700
    assert mode(socket_directory / "a" / "b" / "n.sock") == 0o600
    assert daemon.stop() == 0
    assert files_of(socket_directory / "a" / "b") == set()


@needs_root
def test_the_members_of_a_group_may_use_the_sockets(start_daemon: StartDaemon, socket_directory: Path) -> None:
    group = next(group for group in grp.getgrall() if group.gr_gid != os.getegid())
    path = socket_directory / "made" / "n.sock"
    socket_directory.chmod(0o755)
    start_daemon("--simulate", "trn1.2xlarge", "--socket", str(path), "--group", group.gr_name)
    assert (mode(path.parent), path.parent.stat().st_gid) == (0o750, group.gr_gid)
    for file in (path, Path(f"{path}.attach")):
        assert (mode(file), file.stat().st_gid) == (0o660, group.gr_gid)
    connect = f"import socket\ntry: socket.socket(socket.AF_UNIX).connect({str(path)!r})\nexcept OSError as e: print(e)"
    assert as_nobody(group.gr_gid, connect) == ""
    assert as_nobody(group.gr_gid + 1, connect) == "[Errno 13] Permission denied\n"


def test_a_group_that_there_is_not(socket_directory: Path) -> None:
    done = neurond("--socket", str(socket_directory / "n.sock"), "--group", "no such group")
    assert done.returncode == EXIT_USAGE
    assert done.stderr == "neurond: there is no group 'no such group'; name one of `getent group`\n"
    assert files_of(socket_directory) == set()


def test_a_second_daemon_is_refused(start_daemon: StartDaemon) -> None:
    first = start_daemon()
    second = neurond("--socket", first.socket)
    assert second.returncode == 1
    assert second.stdout == ""
    assert second.stderr == (
        f"neurond: a daemon serves {first.socket} already (PID {first.pid}); stop it, or choose another socket with "
        "--socket\n"
    )
    assert first.snapshot().daemon_pid == first.pid, "the first one goes on"
    Attachment(first).close()


def test_what_a_killed_daemon_left_is_taken_over(start_daemon: StartDaemon, socket_directory: Path) -> None:
    first = start_daemon()
    first.stop(signal.SIGKILL)
    assert files_of(socket_directory) == {"n.sock", "n.sock.attach", "n.sock.lock"}
    second = start_daemon()
    assert second.socket == first.socket
    assert second.snapshot().daemon_pid == second.pid != first.pid
    Attachment(second).close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_behind(start_daemon: StartDaemon, socket_directory: Path, number: signal.Signals) -> None:
    daemon = start_daemon()
    attachment = Attachment(daemon)
    attachment.attach()
    assert daemon.stop(number) == 0
    assert files_of(socket_directory) == set()
    assert attachment.connection.recv(1) == b"", "those who are attached are told"
    attachment.close()
    assert "Traceback" not in daemon.log
    assert "Error" not in daemon.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_daemon_starts_leaves_nothing_behind(socket_directory: Path, number: signal.Signals) -> None:
    """The signal comes as soon as there is a lock, in the midst of everything."""
    command = [sys.executable, "-m", "neurond", "--simulate", "trn1.2xlarge", "--socket", f"{socket_directory}/n.sock"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        wait_until((socket_directory / "n.sock.lock").exists)
        process.send_signal(number)
        assert process.wait(HANG_SECONDS) == 0
    assert files_of(socket_directory) == set()


@pytest.mark.parametrize("name", ["n.sock", "n.sock.attach"])
def test_a_file_that_is_no_socket_is_left_alone(socket_directory: Path, name: str) -> None:
    (socket_directory / name).write_text("mine")
    done = neurond("--socket", str(socket_directory / "n.sock"))
    assert done.returncode == 1
    path = socket_directory / name
    assert done.stderr == f"neurond: {path} exists and is not a socket; remove it, or choose another with --socket\n"
    assert path.read_text() == "mine"
    assert files_of(socket_directory) == {name}


@needs_root
@pytest.mark.parametrize(("owner", "permissions"), [(65534, 0o700), (0, 0o777), (0, 0o770)])
def test_a_directory_that_others_may_change_is_refused(socket_directory: Path, owner: int, permissions: int) -> None:
    directory = socket_directory / "theirs"
    directory.mkdir()
    os.chown(directory, owner, -1)
    directory.chmod(permissions)
    done = neurond("--socket", str(directory / "n.sock"))
    assert done.returncode == EXIT_PERMISSION
    assert done.stderr == (
        f"neurond: others may change the directory {directory}; use one that is yours alone with --socket\n"
    )
    assert files_of(directory) == set()


def test_a_sticky_directory_such_as_tmp_will_do(start_daemon: StartDaemon, socket_directory: Path) -> None:
    (socket_directory / "tmp").mkdir()
    (socket_directory / "tmp").chmod(0o1777)
    assert start_daemon(name="tmp/n.sock").snapshot().sequence


def test_a_directory_that_cannot_be_made(socket_directory: Path) -> None:
    (socket_directory / "file").write_text("")
    path = socket_directory / "file" / "n.sock"
    done = neurond("--socket", str(path))
    assert done.returncode == 1
    assert done.stderr == f"neurond: can't use the socket {path} (Not a directory); choose another with --socket\n"


@needs_root
def test_a_directory_without_permission(socket_directory: Path) -> None:
    """As another user: nothing is forbidden to root."""
    path = socket_directory / "n.sock"
    socket_directory.chmod(0o700)
    code = (
        "from neurond.service.socket_files import SocketFiles\nfrom neurontools.errors import UserError\n"
        f"try: SocketFiles({str(path)!r}).claim()\nexcept UserError as error: print(error.exit_code, error)"
    )
    assert as_nobody(65534, code) == (
        f"{EXIT_PERMISSION} can't use the socket {path} (Permission denied); choose another with --socket\n"
    )


def test_a_lock_that_is_a_link_is_not_followed(socket_directory: Path) -> None:
    precious = socket_directory / "precious"
    precious.write_text("data")
    (socket_directory / "n.sock.lock").symlink_to(precious)
    done = neurond("--socket", str(socket_directory / "n.sock"))
    assert done.returncode == 1
    assert "Too many levels of symbolic links" in done.stderr
    assert precious.read_text() == "data"


def test_a_lock_that_is_another_file_too_is_left_alone(socket_directory: Path) -> None:
    precious = socket_directory / "precious"
    precious.write_text("data")
    os.link(precious, socket_directory / "n.sock.lock")
    done = neurond("--socket", str(socket_directory / "n.sock"))
    assert (done.returncode, len(done.stderr.splitlines())) == (EXIT_PERMISSION, 1)
    assert "is no file of its own" in done.stderr
    assert precious.read_text() == "data"


@needs_root
def test_a_way_that_another_user_can_change_is_not_gone(socket_directory: Path) -> None:
    """He could put a link there between two looks, and have modes changed elsewhere."""
    theirs, mine = socket_directory / "theirs", socket_directory / "theirs" / "mine"
    mine.mkdir(parents=True)
    for owner, permissions in ((65534, 0o755), (0, 0o777)):
        os.chown(theirs, owner, -1)
        theirs.chmod(permissions)
        with pytest.raises(UserError, match=f"others may change the directory {theirs};"):
            SocketFiles(str(mine / "n.sock")).claim()
        assert files_of(mine) == set()


def test_what_came_in_place_of_a_socket_keeps_its_mode(socket_directory: Path) -> None:
    files = SocketFiles(str(socket_directory / "n.sock"))
    files.claim()
    precious = socket_directory / "precious"
    precious.touch(0o644)
    for is_link in (True, False):
        if is_link:
            (socket_directory / "n.sock").symlink_to(precious)
        else:
            (socket_directory / "n.sock").touch(0o644)
        with pytest.raises(OSError, match=r"n\.sock"):
            files.open_up(files.path)
        assert mode(socket_directory / "n.sock") == 0o644
        (socket_directory / "n.sock").unlink()
    files.release()
    assert files_of(socket_directory) == {"precious"}


def test_two_daemons_that_make_one_directory_at_once_both_have_it(socket_directory: Path) -> None:
    script = (
        "import sys; from neurond.service.socket_files import SocketFiles\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "for n in range(100): SocketFiles(f'{sys.argv[1]}/{n}/run/{sys.argv[2]}.sock').claim()"
    )
    daemons = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(socket_directory), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "other")
    ]
    for daemon in daemons:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "ready\n"
    for daemon in daemons:
        assert daemon.stdin is not None
        daemon.stdin.write("\n")
        daemon.stdin.flush()
    assert [(daemon.communicate()[1], daemon.returncode) for daemon in daemons] == [("", 0)] * 2


def test_a_path_that_is_too_long() -> None:
    done = neurond("--socket", f"/tmp/{'x' * 200}")
    assert done.returncode == EXIT_USAGE
    assert done.stderr.startswith("neurond: --socket: the socket path /tmp/xxxx")
    assert "is longer than the 100 bytes a socket path can have; give a shorter one\n" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_runtime_directory_is_the_default(socket_directory: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(socket_directory), "NEURONTOOLS_SOCKET": ""}
    readable, writable = os.pipe()
    with python_process.popen(
        [sys.executable, "-m", "neurond", "--simulate", "trn1.2xlarge", "--ready-fd", str(writable)],
        loaded=python_process.MONITORS,
        pass_fds=(writable,),
        stderr=subprocess.DEVNULL,
        env=os.environ | environment,
    ) as process:
        os.close(writable)
        with os.fdopen(readable) as ready:
            assert ready.read() == "ready\n"
        assert mode(socket_directory / "neurontools") == 0o700
        assert stat.S_ISSOCK((socket_directory / "neurontools" / "neurond.sock").stat().st_mode)
        process.terminate()
    assert process.returncode == 0


@pytest.mark.parametrize("name", ["a b", "100%41", "a#b", "a?b", "ä→"])
def test_a_path_with_characters_that_mean_something_in_a_uri(
    start_daemon: StartDaemon, socket_directory: Path, name: str
) -> None:
    daemon = start_daemon(name=f"{name}.sock")
    assert daemon.snapshot().sequence
    assert daemon.stop() == 0
    assert files_of(socket_directory) == set()


def test_a_socket_that_somebody_listens_on_is_not_taken(start_daemon: StartDaemon, socket_directory: Path) -> None:
    path = socket_directory / "theirs.sock"
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(path))
        theirs.listen()
        done = neurond("--socket", str(path))
        assert done.returncode == 1
        assert done.stderr == (
            f"neurond: another program listens on {path}; stop it, or choose another socket with --socket\n"
        )
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
    assert start_daemon(name="theirs.sock").snapshot().sequence, "now it is a dead one's"


def test_a_socket_of_another_kind_is_not_taken(socket_directory: Path) -> None:
    path = socket_directory / "log.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as theirs:
        theirs.bind(str(path))
        assert "another program listens on" in neurond("--socket", str(path)).stderr
        assert path.exists()
