"""Table of the tests of neuron-diag: levels, and the kinds of injected faults that each test finds."""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False  # replaces typing.TYPE_CHECKING, whose import takes several milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class DiagTest:
    """One test: its name, the lowest level that runs it, and a summary that completes "checks that …".

    `finds` are the names of the kinds of neuron-fault for which the test fails or warns.
    """

    name: str
    level: int
    summary: str
    finds: tuple[str, ...] = ()


BETWEEN_HOSTS = "between-hosts"
TESTS = (
    DiagTest("daemon", 1, "a monitor daemon of this version answers with a recent snapshot"),
    DiagTest("driver", 1, "the driver shows every device on the PCI bus, and the user may open the device files"),
    DiagTest("variables", 1, "the environment variables of the Neuron runtime are valid"),
    DiagTest("network", 1, "the EFA adapters of the instance type have their driver"),
    DiagTest("devices", 1, "each device of the instance is there, with its NeuronLinks", ("device-lost",)),
    DiagTest(
        "counters",
        1,
        "no error counter, failed reset or unhealthy part of a device stands against it",
        (
            "sram-uncorrectable",
            "hbm-uncorrectable",
            "hbm-repairable",
            "ecc-corrected",
            "link-down",
            "part-unhealthy",
        ),
    ),
    DiagTest("kernel-log", 1, "the kernel log has no hardware error and no failed reset of a device"),
    DiagTest("memory", 1, "a device that no process holds has free HBM"),
    DiagTest("processes", 1, "no process on the device hangs, fails or is slow"),
    DiagTest("earlier-runs", 1, "no test of the device that this run leaves out failed in an earlier run"),
    DiagTest(
        "matmul",
        2,
        "matrix products in fp32, bf16 and fp8 have exactly the expected results",
        (
            "nc-uncorrectable",
            "dma-abort",
            "hang-compute",
            "numerical",
            "out-of-bounds",
            "queue-overflow",
            "network-proxy",
            "execution-unit-lost",
            "bit-flip",
        ),
    ),
    DiagTest("convolution", 2, "a convolution has exactly the expected result"),
    DiagTest("random", 2, "random numbers and stochastic rounding have the expected statistics"),
    DiagTest("hbm", 2, "patterns written to HBM are intact, and how fast HBM is"),
    DiagTest("transfer", 2, "bytes return from the device as they were sent, and how fast"),
    DiagTest("collective", 2, "a collective of the core alone ends at once", ("hang-collective", "collective-latency")),
    DiagTest("speed", 2, "no core is much slower than the fastest one", ("slow-core",)),
    DiagTest("reports", 2, "the daemon counts the executions of the tests", ("reports-lost",)),
    DiagTest("all-reduce", 2, "sums over all devices are exact"),
    DiagTest("all-gather", 2, "parts of all devices arrive intact"),
    DiagTest(BETWEEN_HOSTS, 2, "with --hosts: bytes arrive intact at the next host and return, and how fast"),
    DiagTest("training", 3, "the losses of a small training are exactly the recorded ones"),
    DiagTest("links", 3, "no link between two devices is much slower than the median one", ("slow-link",)),
    DiagTest("sustained", 3, "results stay right, and no core becomes slow, under load for minutes", ("slow-core",)),
    DiagTest("power", 3, "how much power the devices took under load, where the driver reports it"),
)
TEST_NAMES = tuple(test.name for test in TESTS)
LEVELS = tuple(sorted({test.level for test in TESTS}))


def select_tests(level: int, names: Sequence[str] = ()) -> tuple[DiagTest, ...]:
    """Returns the tests of a level and below. With `names`, returns these tests of any level."""
    return tuple(test for test in TESTS if (test.name in names if names else test.level <= level))


def table_text() -> str:
    """Returns the tests as text, one line for each: level, name, summary, and the faults that it finds."""
    width = max(map(len, TEST_NAMES)) + 2
    lines = []
    for test in TESTS:
        lines.append(f"{test.level}  {test.name:<{width}}{test.summary}")
        if test.finds:
            lines.append(f"{'':<{width + 3}}finds {', '.join(test.finds)}")
    return "\n".join((*lines, ""))
