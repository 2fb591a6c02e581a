"""Paths of the daemon's sockets."""

import os

from neurontools.util.errors import EXIT_USAGE, UserError

TYPE_CHECKING = False  # importing typing or collections.abc takes as long as a call to the daemon
if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "NEURONTOOLS_SOCKET"
SIMULATE_VARIABLE = "NEURONTOOLS_SIMULATE"  # starts a private daemon if no socket is named
SYSTEM_SOCKET = "/run/neurond/neurond.sock"
LONGEST_PATH_BYTES = 107  # sun_path of Linux has 108 bytes, the last is NUL
_ATTACH_SUFFIX = ".attach"
REMOTE_SCHEME = "grpcs://"
_stands_for: "dict[str, str]" = {}


def attach_socket(socket: str) -> str:
    return socket + _ATTACH_SUFFIX


def set_display_address(path: str, address: str) -> None:
    """Sets the address that messages show instead of the path of a tunnel's socket."""
    _stands_for[path] = address


def display_address(path: str) -> str:
    """Returns the address of a daemon for messages: the remote address if the socket is a tunnel's, else the path."""
    return _stands_for.get(path) or f"unix:{path}"


def validate_socket_path(path: str, given_by: str) -> str:
    """Returns a socket path without `unix:`. Raises UserError if no socket can have this path."""
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
    """Returns the gRPC target for a socket path. It is a URI, so %, ? and # are quoted."""
    from urllib.parse import quote

    return f"unix:{quote(os.fsencode(path))}"


def configured_socket(option: str | None, environment: "Mapping[str, str]") -> str | None:
    """Returns the socket path from --socket or NEURONTOOLS_SOCKET; None if neither is given."""
    if option is not None:
        return validate_socket_path(option, "--socket")
    text = environment.get(VARIABLE, "")
    return validate_socket_path(text, VARIABLE) if text else None


def default_socket(environment: "Mapping[str, str]") -> str:
    """Returns the default socket path of a daemon that this user starts."""
    runtime_directory = environment.get("XDG_RUNTIME_DIR", "")
    if runtime_directory.startswith("/"):
        return f"{runtime_directory}/neurontools/neurond.sock"
    if os.geteuid() == 0:
        return SYSTEM_SOCKET
    # No session (cron, su, a container): use a directory of the user's own. The daemon checks its owner and mode.
    return f"/tmp/neurontools-{os.geteuid()}/neurond.sock"  # noqa: S108


def candidate_sockets(environment: "Mapping[str, str]") -> tuple[str, ...]:
    """Returns the socket paths that a client tries by default: the user's own daemon, then the system's."""
    own = default_socket(environment)
    if own == SYSTEM_SOCKET or not _is_trustworthy(own):
        return (SYSTEM_SOCKET,)
    return (own, SYSTEM_SOCKET)


def _is_trustworthy(path: str) -> bool:
    """Whether a client may use a socket path. Below /tmp, its directory must belong to the user or be missing."""
    if not path.startswith("/tmp/"):  # noqa: S108
        return True
    try:
        found = os.lstat(os.path.dirname(path))  # noqa: PTH120
    except OSError:
        return True
    # True for a directory of this user that only its owner can change.
    return found.st_uid == os.geteuid() and found.st_mode & 0o170022 == 0o040000
