"""What a small training's profile is in the files of viewers and in the report, to the letter."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from neurontools.cli.profile import command
from neurontools.profile.formats.chrome_trace import write_trace
from tests.harness.command import call_main
from tests.harness.pictures import is_as_stored
from tests.harness.profiles import write
from tests.harness.trained_profiles import BEGAN_NS, trained

GOLDEN = Path(__file__).parent / "golden"


def test_the_trace_has_an_event_for_all_that_was_recorded(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.gz", trained(1)[0])
    trace = json.loads(gzip.decompress((tmp_path / "trace.gz").read_bytes()))
    events = trace.pop("traceEvents")
    rows = "\n".join(json.dumps(row) for row in (trace, *events))
    assert is_as_stored(rows + "\n", GOLDEN / "trace.jsonl"), "UPDATE_GOLDEN=1 writes it anew"


@pytest.mark.parametrize("order", [1, -1])
def test_no_event_of_several_workers_begins_before_the_base_of_the_trace(tmp_path: Path, order: int) -> None:
    """Readers add the base to each time; ten weeks later is another base."""
    (profile,) = trained(1)
    late = replace(profile, metadata=replace(profile.metadata, began_ns=BEGAN_NS + 70 * 86_400 * 10**9))
    write_trace(tmp_path / "trace.gz", *[profile, late][::order])
    trace = json.loads(gzip.decompress((tmp_path / "trace.gz").read_bytes()))
    assert trace["baseTimeNanoseconds"] <= BEGAN_NS
    assert min(event["ts"] for event in trace["traceEvents"] if "ts" in event) >= 0


def test_the_report_of_two_ranks(tmp_path: Path) -> None:
    for profile in trained(4, 2, slow_rank=1):
        write(tmp_path / f"rank{profile.metadata.rank}.neuronprofile", profile)
    shown = call_main(command.main, "show", ".", cwd=tmp_path, COLUMNS="120", TZ="UTC").stdout
    assert is_as_stored(shown, GOLDEN / "profile.txt"), "UPDATE_GOLDEN=1 writes it anew"
