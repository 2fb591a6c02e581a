"""Unary gRPC calls to the monitor daemon, with error messages for users."""

import os
from time import monotonic

from neurontools.rpc.call import STATUS_NAMES, CallError, RpcError, Status, UnexpectedReply, Unreachable, call
from neurontools.rpc.socket_path import display_address, grpc_target
from neurontools.util.errors import (
    EXIT_FAILURE,
    EXIT_NO_DAEMON,
    EXIT_NOT_FOUND,
    EXIT_PERMISSION,
    EXIT_TIMED_OUT,
    EXIT_USAGE,
    UserError,
)

# The exit code and message for each gRPC status.
_MESSAGES = {
    Status.NOT_FOUND: (EXIT_NOT_FOUND, "{details}"),
    Status.INVALID_ARGUMENT: (EXIT_USAGE, "{details}"),
    Status.FAILED_PRECONDITION: (EXIT_FAILURE, "the monitor daemon at {at} can't do that: {details}"),
    Status.PERMISSION_DENIED: (EXIT_PERMISSION, "the monitor daemon at {at} refuses: {details}"),
    # `details` says whether the daemon is ending, the caller has too many open calls, or the connection broke.
    Status.UNAVAILABLE: (EXIT_NO_DAEMON, "the monitor daemon at {at} can't answer ({details}); retry, or see its log"),
    Status.CANCELLED: (EXIT_NO_DAEMON, "the monitor daemon at {at} cancelled the call ({details}); retry"),
    Status.RESOURCE_EXHAUSTED: (EXIT_FAILURE, "the monitor daemon at {at} is at a limit: {details}"),
    Status.DEADLINE_EXCEEDED: (
        EXIT_TIMED_OUT,
        "the monitor daemon at {at} gave no answer in time ({details}); see its log, or restart it",
    ),
}
_OTHERWISE = (EXIT_FAILURE, "the monitor daemon at {at} failed ({status}: {details}); is it of another version?")


class NoDaemon(UserError):
    """No daemon answers at the socket. `is_absent` says whether no daemon is running there at all."""

    def __init__(self, text: str, exit_code: int, *, is_absent: bool) -> None:
        super().__init__(text, exit_code)
        self.is_absent = is_absent


class TimedOut(UserError):
    """The daemon is running but did not answer in time."""


def ask(socket_path: str, method: str, request: bytes, timeout_seconds: float) -> bytes:
    """Makes a unary call and returns the reply. Raises NoDaemon, TimedOut or UserError with a message for the user."""
    deadline = monotonic() + timeout_seconds
    try:
        try:
            return call(socket_path, method, request, timeout_seconds=timeout_seconds)
        except UnexpectedReply:
            return _call_with_grpcio(socket_path, method, request, max(deadline - monotonic(), 0.001))
    except CallError as error:
        raise ask_error(socket_path, error) from error


def _call_with_grpcio(socket_path: str, method: str, request: bytes, timeout_seconds: float) -> bytes:
    import grpc

    with grpc.insecure_channel(grpc_target(socket_path)) as channel:
        try:
            # Without serializers, request and reply stay bytes.
            return bytes(channel.unary_unary(method)(request, timeout=timeout_seconds))  # type: ignore[arg-type]
        except grpc.RpcError as error:
            # grpcio raises one object that is both the exception and the call, so it has `code` and `details`.
            raise RpcError(error.code().value[0], error.details() or "") from error


def ask_error(socket_path: str, error: CallError) -> UserError:
    if isinstance(error, Unreachable):
        return _unreachable(socket_path, error)
    if not isinstance(error, RpcError):
        return UserError(
            f"the reply of {display_address(socket_path)} is not gRPC ({error}); is something else listening there?"
        )
    exit_code, text = _MESSAGES.get(error.code, _OTHERWISE)
    status = STATUS_NAMES.get(error.code, str(error.code))
    message = text.format(at=display_address(socket_path), details=error.details or status, status=status)
    if error.code in (Status.UNAVAILABLE, Status.CANCELLED):
        return NoDaemon(message, exit_code, is_absent=False)
    if error.code == Status.DEADLINE_EXCEEDED:
        return TimedOut(message, exit_code)
    return UserError(message, exit_code)


def _is_other_file(path: str) -> bool:
    """Returns whether a path exists and is no socket (S_IFSOCK, 0o140000). The modules stat and pathlib load slowly."""
    try:
        return os.stat(path).st_mode & 0o170000 != 0o140000  # noqa: PTH116
    except (OSError, ValueError):
        return False


def _unreachable(socket_path: str, error: Unreachable) -> NoDaemon:
    reason = str(error)
    at, cause = display_address(socket_path), reason[:1].lower() + reason[1:]
    if isinstance(error.__cause__, PermissionError):
        message = f"no access to the monitor daemon at {at} ({cause}); use an account that its socket admits"
        return NoDaemon(message, EXIT_PERMISSION, is_absent=False)
    if _is_other_file(socket_path):
        return NoDaemon(f"{at} is not a socket; give the socket of a monitor daemon", EXIT_USAGE, is_absent=False)
    message = (
        f'no monitor daemon at {at} ({cause}); start one with "neurond --socket {socket_path} --simulate trn1.32xlarge"'
    )
    absent = (FileNotFoundError, NotADirectoryError, ConnectionRefusedError)
    return NoDaemon(message, EXIT_NO_DAEMON, is_absent=isinstance(error.__cause__, absent))
