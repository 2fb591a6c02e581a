"""Where the daemon's sockets are."""

import os

from neurontools.util.errors import EXIT_USAGE, UserError

TYPE_CHECKING = False  # as typing has it; importing typing, or collections.abc, takes as long as a call to the daemon
if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "NEURONTOOLS_SOCKET"
SYSTEM_SOCKET = "/run/neurond/neurond.sock"
LONGEST_PATH_BYTES = 107  # sun_path of Linux is 108 bytes, the last of them NUL
_ATTACH_SUFFIX = ".attach"
REMOTE_SCHEME = "grpcs://"
_stands_for: "dict[str, str]" = {}


def attach_socket(socket: str) -> str:
    """The path of the attach socket that belongs to an API socket."""
    return socket + _ATTACH_SUFFIX


def set_display_address(path: str, display_address: str) -> None:
    """From here on the daemon at this socket is told to be at this place: the socket only leads there."""
    _stands_for[path] = display_address


def display_address(path: str) -> str:
    """Where the daemon at a socket is, for what a user is told."""
    return _stands_for.get(path) or f"unix:{path}"


def validate_socket_path(path: str, given_by: str) -> str:
    """An API socket path as a user gave it, `unix:` removed; UserError when no socket can have this path."""
    if path.startswith(REMOTE_SCHEME):
        raise UserError(
            f"{given_by}: {path[:60]} is an address that monitors read from; give the path of a socket of this host",
            EXIT_USAGE,
        )
    bare = path.removeprefix("unix://").removeprefix("unix:")
    if not bare or "\0" in bare:
        raise UserError(
            f"{given_by}: the socket path is empty or has a NUL in it; give a path such as /run/x.sock", EXIT_USAGE
        )
    if len(os.fsencode(attach_socket(bare))) > LONGEST_PATH_BYTES:
        longest = LONGEST_PATH_BYTES - len(_ATTACH_SUFFIX)
        raise UserError(
            f"{given_by}: the socket path {bare[:40]}… is longer than the {longest} bytes a socket path can have; "
            "give a shorter one",
            EXIT_USAGE,
        )
    return bare


def grpc_target(path: str) -> str:
    """A socket path as grpcio wants it: it reads a URI, in which %, ? and # mean something."""
    from urllib.parse import quote

    return f"unix:{quote(os.fsencode(path))}"


def configured_socket(option: str | None, environment: "Mapping[str, str]") -> str | None:
    """The socket a user named with --socket or NEURONTOOLS_SOCKET; None when neither is there."""
    if option is not None:
        return validate_socket_path(option, "--socket")
    text = environment.get(VARIABLE, "")
    return validate_socket_path(text, VARIABLE) if text else None


def default_socket(environment: "Mapping[str, str]") -> str:
    """Where a daemon started by this user listens when no socket is named."""
    runtime_directory = environment.get("XDG_RUNTIME_DIR", "")
    if runtime_directory.startswith("/"):
        return f"{runtime_directory}/neurontools/neurond.sock"
    if os.geteuid() == 0:
        return SYSTEM_SOCKET
    # No session (cron, su, a container): a directory of the user's own; the daemon insists on its owner and mode.
    return f"/tmp/neurontools-{os.geteuid()}/neurond.sock"  # noqa: S108


def candidate_sockets(environment: "Mapping[str, str]") -> tuple[str, ...]:
    """Where a client looks when no socket is named: the user's own daemon, then the system's."""
    own = default_socket(environment)
    if own == SYSTEM_SOCKET or not _is_trustworthy(own):
        return (SYSTEM_SOCKET,)
    return (own, SYSTEM_SOCKET)


def _is_trustworthy(path: str) -> bool:
    """Whether the directory is the user's own where anybody could have made it; one that isn't there does no harm."""
    if not path.startswith("/tmp/"):  # noqa: S108
        return True
    try:
        found = os.lstat(os.path.dirname(path))  # noqa: PTH120
    except OSError:
        return True
    return found.st_uid == os.geteuid() and found.st_mode & 0o170022 == 0o040000  # a directory only its owner changes
