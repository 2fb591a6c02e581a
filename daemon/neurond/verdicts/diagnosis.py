"""Failed tests of neuron-diag as findings. They last until a later run of neuron-diag passes the tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from neurontools.model.finding import Finding, FindingKind, Severity

_MOST_TESTS = 64  # most failed tests of a device that are kept
_MOST_NAMES = 4  # most of them that a reason names beside the first


@dataclass(frozen=True, slots=True)
class DiagnosedTest:
    """Result of a test of neuron-diag at this level, on a device (None: the host). `reason` says why it failed."""

    test: str
    level: int
    is_failed: bool
    device_index: int | None
    neuroncore_index: int | None = None
    reason: str = ""
    action: str = ""
    injected: bool = False


class DiagnosisRecord:
    """The tests of neuron-diag that failed last, by device. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._failed: dict[int | None, dict[str, DiagnosedTest]] = {}

    def add_run(self, results: Iterable[DiagnosedTest]) -> None:
        """Adds the failed tests of a run, and removes those that passed. Other tests and devices keep their state.

        A test has a result for each core of a device. It failed on the device if one of these results did.
        """
        merged: dict[tuple[int | None, str], DiagnosedTest] = {}
        for result in results:
            known = merged.setdefault((result.device_index, result.test), result)
            if result.is_failed and not known.is_failed:
                merged[result.device_index, result.test] = result
        for (device_index, test), result in merged.items():
            failed = self._failed.setdefault(device_index, {})
            if result.is_failed:
                failed[test] = result  # keeps its place, so that the finding keeps its begin
            else:
                failed.pop(test, None)
            if len(failed) > _MOST_TESTS:
                del failed[next(iter(failed))]
            if not failed:
                del self._failed[device_index]

    def findings(self, at_unix_seconds: float) -> Iterator[Finding]:
        """Yields one finding for each device with failed tests. Its part is the name of the first failed test."""
        for device_index, failed in self._failed.items():
            first, *others = failed.values()
            names = [each.test for each in others[:_MOST_NAMES]]
            names += [f"{len(others) - _MOST_NAMES} more"] if len(others) > _MOST_NAMES else []
            also = f"; so did {', '.join(names)}" if names else ""
            yield Finding(
                FindingKind.TEST_FAILED,
                Severity.WARNING,
                f"{first.test} of neuron-diag level {first.level} failed: {first.reason}{also}",
                first.action,
                at_unix_seconds,
                () if device_index is None else (device_index,),
                neuroncore_index=first.neuroncore_index,
                part=first.test,
                injected=first.injected,
            )
