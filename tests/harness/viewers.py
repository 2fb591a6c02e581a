"""Other people's programs that read profiles, in the environment that `make viewers` makes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.harness.paths import ROOT
from tests.harness.waiting import HANG_SECONDS

PYTHON = ROOT / ".venv/viewers/bin/python"
_XPROF = """
import json, sys
from xprof.convert import raw_to_tool_data
files, answers = sys.argv[2:], {}
for tool in sys.argv[1].split(","):
    answer, _ = raw_to_tool_data.xspace_to_tool_data(files, tool, {})
    answers[tool] = json.loads(answer)
answers["names"] = raw_to_tool_data.xspace_to_tool_names(files)
json.dump(answers, open(sys.argv[2] + ".answers", "w"))
"""
_HTA = """
import json, sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])  # finds the rank in each file
answers = {
    "temporal": analysis.get_temporal_breakdown(visualize=False).to_dict("records"),
    "kernels": analysis.get_gpu_kernel_breakdown(visualize=False)[0].to_dict("records"),
}
json.dump(answers, open(sys.argv[1] + "/answers", "w"))
"""


def has_xprof() -> bool:
    """Whether xprof and HolisticTraceAnalysis are installed."""
    return all(any((ROOT / ".venv/viewers/lib").glob(f"python3*/site-packages/{name}")) for name in ("xprof", "hta"))


def viewer(name: str) -> Path | None:
    """A program of that environment, where it and the plugin that shows profiles are installed."""
    program = PYTHON.with_name(name)
    return program if program.exists() and has_xprof() else None


def xprof(files: list[Path], *tools: str) -> dict[str, Any]:
    """What xprof's converter answers by tool, and under `names` the tools that it offers."""
    _run(_XPROF, ",".join(tools), *map(str, files))
    answers: dict[str, Any] = json.loads(Path(f"{files[0]}.answers").read_text())
    return answers


def rows(table: Any) -> list[dict[str, Any]]:
    """A table of Google Charts, as xprof answers, as rows by column."""
    names = [column["id"] for column in table["cols"]]
    return [dict(zip(names, (cell.get("v") for cell in row["c"]), strict=True)) for row in table["rows"]]


def holistic_trace_analysis(directory: Path) -> dict[str, Any]:
    """What HolisticTraceAnalysis makes of the traces of all ranks in a directory."""
    _run(_HTA, str(directory))
    answers: dict[str, Any] = json.loads((directory / "answers").read_text())
    return answers


def _run(script: str, *arguments: str) -> None:
    done = subprocess.run(
        [PYTHON, "-W", "ignore", "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
