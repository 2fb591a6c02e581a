"""Trains with each framework on one worker, on two, and from a checkpoint, and compares the numbers with the CPU.

Prints the table of docs/device.md; `--write` replaces it there, `--only NAME` measures the rows whose name contains
NAME. A cell has the largest difference of losses, gradient norms and weights: absolute, or relative if a number is
above 1. A training that ends with an error has the error in its cell. Needs `make frameworks`, and takes half an hour.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.harness.framework_script import RankReports, run_script
from tests.harness.paths import ROOT

PAGE = ROOT / "docs/device.md"
TITLE = "| | one worker | two workers | resumed |"
NOT_TRIED = "not tried"
ONE, TWO, FOUR = "neuron-run with one worker", "neuron-run with two workers", "neuron-run with four workers"
ON_CPU, TWO_ON_CPU = "cpu", "two processes on the cpu"


class Failed(Exception):
    """A training ended with an error. The text is the last line of its traceback."""


@dataclass(frozen=True)
class Row:
    """A script for a framework. `compared` are the numbers in its reports, lists or values by name.

    `resume` are the arguments of the run that carries an interrupted run on, and `interrupted` those of this run, with
    its variables. `on_cpu` are the arguments of a run on the CPU, and `variables` the environment of all runs.
    """

    name: str
    script: str
    compared: tuple[str, ...] = ("losses", "weights")
    on_cpu: tuple[str, ...] = ()
    interrupted: tuple[tuple[str, ...], dict[str, str]] = ((), {})
    resume: tuple[str, ...] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


NATIVE = {"NEURONTOOLS_DEVICE": "neuron"}
ROWS = (
    Row("transformers' `Trainer`", "hf_trainer.py", resume=("checkpoints/checkpoint-3",)),
    Row(
        "accelerate",
        "accelerate_loop.py",
        ("losses", "norms", "weights"),
        interrupted=(("save",), {}),
        resume=("resume",),
    ),
    Row(
        "Lightning's `Trainer`",
        "lightning_trainer.py",
        on_cpu=("cpu",),
        interrupted=((), {"EPOCHS": "1"}),
        resume=("auto", "checkpoints/last.ckpt"),
    ),
    Row("Lightning Fabric", "lightning_fabric.py", ("losses",), on_cpu=("cpu",)),
    Row("TRL's `SFTTrainer` with LoRA by PEFT", "trl_sft_lora.py", resume=("checkpoints/checkpoint-2",)),
    Row("TRL's `DPOTrainer`", "trl_dpo.py", resume=("checkpoints/checkpoint-2",)),
    Row(
        "TRL's `GRPOTrainer`",
        "trl_grpo.py",
        ("rewards", "weights"),
        resume=("checkpoints/checkpoint-2",),
        variables=NATIVE,
    ),
)
TORCH_SCRIPT = "torch_parallel.py"
TORCH_ROWS = {
    "loop": "plain loop",
    "DDP": "torch's `DistributedDataParallel`",
    "FSDP1": "torch's `FullyShardedDataParallel` (FSDP1)",
    "FSDP2": "torch's `fully_shard` (FSDP2)",
    "TP": "torch's `parallelize_module` with AdamW",
    "2D": "`fully_shard` and `parallelize_module` on a 2D `DeviceMesh`, four workers",
    "context_parallel": "torch's `context_parallel`",
}
"""The ways of the script for torch, whose device name is `neuron`, and their rows."""
NAMES = (*(row.name for row in ROWS), *TORCH_ROWS.values())


def difference(ours: Any, theirs: Any) -> float:
    """Returns the largest difference of two numbers, lists or dictionaries. Of lists, compares the ends."""
    if isinstance(ours, dict):
        return max(difference(ours[name], theirs[name]) for name in theirs)
    if isinstance(ours, list):
        return max(difference(mine, other) for mine, other in zip(ours, theirs[-len(ours) :], strict=True))
    return float(abs(ours - theirs) / max(1.0, abs(theirs)))


def compare(row: Row, ours: RankReports, theirs: RankReports) -> str:
    if len(ours) != len(theirs) or not all(each[name] for each in ours for name in row.compared):
        raise Failed("a rank wrote no numbers")
    return difference_text(
        max(
            difference(mine[name], other[name])
            for mine, other in zip(ours, theirs, strict=True)
            for name in row.compared
        )
    )


def difference_text(largest: float) -> str:
    return "0" if not largest else f"{largest:.1e}"


def train(directory: Path, row: Row, launcher: str, arguments: Sequence[str], **variables: str) -> RankReports:
    done, reports = run_script(directory, launcher, row.script, *arguments, CLIP="0", **row.variables, **variables)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if _ERROR.match(line)]
        raise Failed(errors[-1] if errors else f"exit code {done.returncode}")
    return reports


_ERROR = re.compile(r"[\w.]+(Error|Exception): ")


def cells(row: Row) -> list[str]:
    """Returns the cells of a row: one worker, two workers, resumed."""

    def on_cpu(launcher: str, **variables: str) -> RankReports:
        with tempfile.TemporaryDirectory() as name:
            return train(Path(name), row, launcher, row.on_cpu, **variables)

    def on_device(launcher: str) -> RankReports:
        with tempfile.TemporaryDirectory() as name:
            return train(Path(name), row, launcher, ())

    def resumed() -> RankReports:
        arguments, variables = row.interrupted
        with tempfile.TemporaryDirectory() as name:
            train(Path(name), row, ONE, arguments, **variables)
            return train(Path(name), row, ONE, row.resume or ())

    cpu = on_cpu(ON_CPU)
    found = []
    for run, reference in (
        (partial(on_device, ONE), cpu),
        (partial(on_device, TWO), on_cpu(TWO_ON_CPU, DEVICES="2")),
        (resumed, cpu),
    ):
        try:
            is_tried = run is not resumed or row.resume is not None
            found.append(compare(row, run(), reference) if is_tried else NOT_TRIED)
        except Failed as error:
            found.append(str(error))
    return found


def torch_cells(ways: Sequence[str]) -> dict[str, list[str]]:
    """Returns the cells of torch's ways. The checkpoint of a way carries on its run with the most workers."""
    found: dict[str, list[str]] = {way: [NOT_TRIED] * 3 for way in ways}
    row = Row("torch", TORCH_SCRIPT)
    for column, launcher in enumerate((ONE, TWO, FOUR)):
        chosen = [way for way in ways if (way == "2D") == (launcher is FOUR)]
        with tempfile.TemporaryDirectory() as name:
            reports = train(Path(name), row, launcher, chosen, **NATIVE) if chosen else []
        for way in chosen:
            results = [report[way] for report in reports]
            errors = [result for result in results if isinstance(result, str)]
            place = min(column, 1)
            if errors:
                found[way][place] = found[way][2] = errors[0]
            else:
                found[way][place], found[way][2] = (
                    difference_text(max(result[number] for result in results)) for number in (0, 1)
                )
    return found


def line_of(name: str, found: Sequence[str]) -> str:
    """Returns a line of the table. An error that comes again in a row is not repeated."""
    shown = [
        "the same error" if " " in text and text != NOT_TRIED and text in found[:place] else text
        for place, text in enumerate(found)
    ]
    return f"| {' | '.join((name, *shown))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    lines = [TITLE, "|---" * 4 + "|"]
    for row in (row for row in ROWS if options.only in row.name):
        lines.append(line_of(row.name, cells(row)))
        print(lines[-1], flush=True)
    ways = [way for way, name in TORCH_ROWS.items() if options.only in name]
    for way, found in torch_cells(ways).items():
        lines.append(line_of(TORCH_ROWS[way], found))
        print(lines[-1], flush=True)
    if options.write:
        before, _, rest = PAGE.read_text("utf-8").partition(TITLE)
        after = rest[rest.index("\n\n") :]
        PAGE.write_text(before + "\n".join(lines) + after, "utf-8")


if __name__ == "__main__":
    main()
