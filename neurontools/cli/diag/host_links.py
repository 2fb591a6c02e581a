"""`neuron-diag --hosts`: measures transfers between hosts, each with the next one, and checks their contents."""

from __future__ import annotations

import asyncio
import json
import platform
from collections.abc import Sequence
from itertools import pairwise

from neurontools.cli.diag.hosts import HostOutcome, HostTransfer, read_outputs, started
from neurontools.diagnose.table import BETWEEN_HOSTS
from neurontools.fleet.hosts import HostAddress, Reach
from neurontools.util.terminal import excerpt

_LIMIT_SECONDS = 300.0  # of one transfer, with the start of its two processes
_ORDER = [*HostOutcome]
_Result = tuple[HostOutcome, str, float | None, bool | None]


def measure_links(hosts: Sequence[HostAddress], options: Sequence[str]) -> list[HostTransfer]:
    """Measures the transfer from each host to the next one. No host takes part in two transfers at a time."""
    pairs = [*pairwise(hosts)]
    rounds = [pairs[::2], pairs[1::2], [(hosts[-1], hosts[0])] if len(hosts) > 2 else []]
    return asyncio.run(_measure_rounds(rounds, options))


async def _measure_rounds(
    rounds: Sequence[Sequence[tuple[HostAddress, HostAddress]]], options: Sequence[str]
) -> list[HostTransfer]:
    found = []
    for pairs in rounds:
        found += await asyncio.gather(*(_measure(host, peer, options) for host, peer in pairs))
    return found


async def _measure(host: HostAddress, peer: HostAddress, options: Sequence[str]) -> HostTransfer:
    own = _address(host, peer)
    shared = [*options, f"--test={BETWEEN_HOSTS}", f"--timeout={_LIMIT_SECONDS:g}"]
    try:
        async with asyncio.timeout(_LIMIT_SECONDS), started(host, [*shared, f"--peer=listen:{own}"]) as listening:
            line = await listening.stdout.readline() if listening.stdout is not None else b""
            if not line.startswith(b'{"listening"'):
                return _judged(host, peer, line + (await read_outputs(listening))[0])
            port = int(json.loads(line)["listening"])
            async with started(peer, [*shared, f"--peer={own}:{port}"]) as connecting:
                other = (await read_outputs(connecting))[0]
            found = _judged(host, peer, other)
            if found["outcome"] != HostOutcome.PASS:
                return found  # the listening end would wait for it
            return _judged(host, peer, (await read_outputs(listening))[0], other)
    except TimeoutError:
        return _link(host, peer, (HostOutcome.NOT_RUN, f"no result within {_LIMIT_SECONDS:g} s", None, None))
    except (OSError, ValueError) as error:
        return _link(host, peer, (HostOutcome.NOT_RUN, excerpt(str(error), 200), None, None))


def _address(host: HostAddress, peer: HostAddress) -> str:
    """Returns the address of `host` for `peer`."""
    if host.reach is Reach.SSH:
        return host.address.rpartition("@")[2]
    return "127.0.0.1" if peer.reach is Reach.SOCKET else platform.node()


def _judged(host: HostAddress, peer: HostAddress, *outputs: bytes) -> HostTransfer:
    """Returns the worse result of the two ends."""
    return _link(host, peer, min(map(_result, outputs), key=lambda result: _ORDER.index(result[0])))


def _result(output: bytes) -> _Result:
    try:
        report = json.loads(output)
        (result,) = [each for each in report["results"] if each["test"] == BETWEEN_HOSTS]
        rate = None if result["measured"] is None else float(result["measured"])
        outcome = HostOutcome(result["outcome"])
        return outcome, excerpt(str(result["reason"]), 300), rate, report["simulated"] is True
    except (ValueError, KeyError, TypeError, RecursionError):
        return HostOutcome.NOT_RUN, "neuron-diag gave no result there", None, None


def _link(host: HostAddress, peer: HostAddress, result: _Result) -> HostTransfer:
    outcome, reason, rate, simulated = result
    return HostTransfer(
        host=host.name, peer=peer.name, outcome=outcome, reason=reason, bytes_per_second=rate, simulated=simulated
    )
