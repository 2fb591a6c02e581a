"""CPU of a scrape for 32 processes on trn1.32xlarge. Asked for: at most 2 ms beside prometheus_client's own rendering.

The reference in the same run is prometheus_client (if it is installed) with the same samples in its gauges: its
`generate_latest` alone, without the time that setting the values takes.
"""

from __future__ import annotations

import time

from neurontools import health
from neurontools.exporters.exposition import Exposition
from neurontools.exporters.prometheus import SnapshotMetrics
from tests.scenario_host import ScenarioHost

SCRAPES = 200
PEAK_FLOPS = 95e12


def main() -> None:
    host = ScenarioHost("trn1.32xlarge")
    snapshots = [host.at(10 + second) for second in range(30)]
    metrics, exposition = SnapshotMetrics(0.0), Exposition(openmetrics=False)
    text = b""
    for warm in range(2):
        before = snapshots[warm]
        text = exposition.text(metrics.families(before, None, (), PEAK_FLOPS))
    taken = []
    began_all = time.process_time()
    for number in range(SCRAPES):
        now, before = snapshots[number % 29 + 1], snapshots[number % 29]
        began = time.perf_counter()
        verdicts = health.verdicts(now, snapshots[0])
        text = exposition.text(metrics.families(now, before, verdicts, PEAK_FLOPS))
        taken.append(time.perf_counter() - began)
    spent, best = (time.process_time() - began_all) / SCRAPES, min(taken)
    samples = [line for line in text.decode().splitlines() if not line.startswith("#")]
    theirs = [line for line in samples if not line.startswith("neurontools_")]
    print(f"a scrape of {len(samples)} samples ({len(theirs)} of them the original's), {len(text) / 1000:.0f} kB:")
    print(f"CPU, mean {spent * 1e3:.2f} ms, undisturbed {best * 1e3:.2f} ms (asked for: 2 ms)")
    try:
        reference = reference_seconds(text.decode())
    except ImportError:
        print("reference: prometheus_client is not installed")
        return
    print(f"reference, prometheus_client.generate_latest of the same samples: {reference * 1e3:.2f} ms")
    print(f"ratio: {spent / reference:.2f}")


def reference_seconds(text: str) -> float:
    from prometheus_client import CollectorRegistry, Gauge, generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    registry = CollectorRegistry()
    for family in text_string_to_metric_families(text):
        by_name: dict[str, Gauge] = {}
        for sample in family.samples:
            gauge = by_name.get(sample.name)
            if gauge is None:
                gauge = by_name[sample.name] = Gauge(
                    sample.name, family.documentation, sorted(sample.labels), registry=registry
                )
            (gauge.labels(**sample.labels) if sample.labels else gauge).set(sample.value)
    began = time.process_time()
    for _ in range(20):
        generate_latest(registry)
    return (time.process_time() - began) / 20


if __name__ == "__main__":
    main()
