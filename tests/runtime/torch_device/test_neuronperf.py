"""neuronperf: compiles models for several batch sizes, measures them, and writes reports and model indexes."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
BATCH_SIZES = [1, 4]
INPUTS = [(torch.rand(size, 8), torch.rand(size, 8)) for size in BATCH_SIZES]


class Sum(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 + y


@pytest.fixture
def npf(xla: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    importlib.import_module("neuronperf.torch")
    return importlib.import_module("neuronperf")


def test_an_index_of_models_is_compiled_measured_and_reported(npf: Any) -> None:
    name = npf.torch.compile(Sum().eval(), INPUTS, batch_sizes=BATCH_SIZES, filename="sum.json")
    assert [config["batch_size"] for config in npf.model_index.load(name)["model_configs"]] == BATCH_SIZES
    reports = npf.torch.benchmark(name, INPUTS, n_models=[1, 2], workers_per_model=2, duration=0.01, verbosity=0)
    assert [(each["batch_size"], each["n_models"]) for each in reports] == [(1, 1), (4, 1), (1, 2), (4, 2)]
    for report in reports:
        assert report["status"] == "finished"
        assert report["total_infs"] >= report["n_models"] * report["workers_per_model"]
        assert 0 < report["latency_ms_p0"] <= report["latency_ms_p50"] <= report["latency_ms_p99"]
        samples = report["total_infs"] * report["batch_size"]
        assert report["throughput_avg"] == pytest.approx(samples / report["total_s"], rel=1e-3)
        assert report["throughput_peak"] >= report["throughput_avg"]
    (only,) = npf.torch.benchmark(name, INPUTS, 4, n_models=1, workers_per_model=1, duration=0, verbosity=0)
    assert only["batch_size"] == 4
    assert json.loads(Path(npf.write_json(reports)).read_text("utf-8")) == reports
    moved = npf.model_index.move(name, "moved.json", "others")
    npf.model_index.delete(moved)
    assert not [*Path("models").iterdir(), *Path("others").iterdir()]


def test_reports_follow_from_what_was_measured(npf: Any, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model_filename": "sum.pt", "batch_size": 4, "n_models": 1, "cost_per_hour": 3.6}
    ends = [5.0 + number / 10 for number in range(1, 11)] + [5.95, 5.96]
    latencies = [0.001 * number for number in range(12, 0, -1)]
    phases = {"load": [0.5, 1.0], "warmup": [], "preprocess": [0.001], "postprocess": [0.002, 0.002], "e2e": [0.25]}
    timers = {"status": "finished", "began": 5.0, "ends": ends, "latencies": latencies, **phases}
    failed = {"status": "error", "began": 5.0, "ends": [], "latencies": [], **dict.fromkeys(phases, ())}
    reports = npf.get_reports([(config, timers), ({**config, "cost_per_hour": None}, failed)])
    assert reports[0] == {
        "model_filename": "sum.pt",
        "batch_size": 4,
        "n_models": 1,
        "status": "finished",
        "total_infs": 12,
        "total_s": 1.0,
        "throughput_avg": 48.0,
        "throughput_peak": 160.0,
        "latency_ms_avg": 6.5,
        "latency_ms_p0": 1.0,
        "latency_ms_p50": 7.0,
        "latency_ms_p90": 11.0,
        "latency_ms_p95": 12.0,
        "latency_ms_p99": 12.0,
        "latency_ms_p100": 12.0,
        "load_avg_ms": 750.0,
        "warmup_avg_ms": None,
        "preprocess_avg_ms": 1.0,
        "postprocess_avg_ms": 2.0,
        "e2e_avg_ms": 250.0,
        "cost_per_1m_inf": 20.8333,
    }
    assert {name for name, value in reports[1].items() if value is None} == set(reports[0]) - set(config) - {
        *("status", "total_infs")
    } | {"total_s"}
    for is_reversed in (False, True):
        npf.print_reports(reports, reverse=is_reversed)
    titles = "throughput_avg latency_ms_p50 latency_ms_p99 n_models pipeline_size workers_per_model batch_size "
    title = f"{titles}model_filename"
    measured = "48.0           7.0            12.0           1        -             -                 4          sum.pt"
    nothing = "-              -              -              1        -             -                 4          sum.pt"
    assert capsys.readouterr().out.splitlines() == [*(title, nothing, measured), *(title, measured, nothing)]
    names = ("status", "total_infs", "cost_per_1m_inf")
    assert Path(npf.write_csv(reports, "sum.csv", names)).read_bytes() == (
        b"status,total_infs,cost_per_1m_inf\r\nfinished,12,20.8333\r\nerror,0,\r\n"
    )


def test_a_saved_model_is_measured_with_hooks_and_a_failure_is_a_report(npf: Any, caplog: Any) -> None:
    torch_neuronx = importlib.import_module("torch_neuronx")
    torch.jit.save(torch_neuronx.trace(Sum().eval(), INPUTS[0]), "model.pt")
    seen: list[torch.Tensor] = []
    results = npf.torch.benchmark(
        "model.pt", INPUTS[0], n_models=1, workers_per_model=1, duration=0, verbosity=0, return_timers=True,
        preprocess_fn=lambda x, y: (x * 0, y), postprocess_fn=seen.append, cost_per_hour=3.6, model_name="sum",
    )  # fmt: skip
    (report,) = npf.get_reports(results)
    assert torch.equal(seen[-1], INPUTS[0][1])
    assert report["model_name"] == "sum"
    assert report["cost_per_1m_inf"] == pytest.approx(1000 / report["throughput_avg"], abs=1e-3)
    (failed,) = npf.torch.benchmark("model.pt", INPUTS[1], 4, n_models=1, workers_per_model=1, duration=0, verbosity=0)
    assert (failed["status"], failed["total_infs"], failed["throughput_avg"]) == ("error", 0, None)
    assert "Incorrect tensor shape" in caplog.text
    for wrong, why in (
        ({"pipeline_sizes": 2}, "runs on one NeuronCore"),
        ({"batch_sizes": [1, 2]}, "2 batch sizes for 1 inputs"),
        ({"device_type": "gpu"}, "'gpu' can't be measured"),
    ):
        with pytest.raises(ValueError, match=why):
            npf.torch.benchmark("model.pt", INPUTS[0], **wrong)
