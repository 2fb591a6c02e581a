"""Reports of accounts, and models that execute in them, for tests."""

from __future__ import annotations

from neurontools.rpc import neuron_pb2
from neurontools.runtime.reporting.accounts import (
    Accounts,
    Started,
)
from neurontools.runtime.reporting.kinds import Outcome

UNIX = 1_000_000.0


def report_of(accounts: Accounts, now: float, cores: int = 2) -> neuron_pb2.Report:
    return accounts.report(cores, now, UNIX)


def begin(accounts: Accounts, at: float, core: int = 0, model: object = None) -> Started:
    started = (model, core, at)
    accounts.begin(started)
    return started


def end(accounts: Accounts, started: Started, at: float, outcome: Outcome = Outcome.COMPLETED, flop: int = 0) -> None:
    accounts.end(started, at, flop, outcome, 0.0)
