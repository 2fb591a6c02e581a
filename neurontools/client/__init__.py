"""A blocking client of the monitor daemon and a reader of recordings, for programs and notebooks.

    from neurontools import client

    with client.connect() as daemon:
        snapshot = daemon.snapshot()

Needs neither torch nor grpcio. docs/python.md has more examples.
"""

from neurontools.util.light_imports import lazy_names

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, whose import takes several milliseconds
if TYPE_CHECKING:
    from neurontools.client.daemon_client import Client, Closed, Ended, Recording, connect, read_snapshot
    from neurontools.rpc.ask import NoDaemon, TimedOut
    from neurontools.util.errors import UserError

__all__ = [
    "Client",
    "Closed",
    "Ended",
    "NoDaemon",
    "Recording",
    "TimedOut",
    "UserError",
    "connect",
    "read_snapshot",
]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, __all__, "daemon_client")
