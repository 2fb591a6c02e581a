"""neuronperf: compiles models for several batch sizes, measures them, and writes reports and model indexes."""

from __future__ import annotations

import csv
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


def test_an_index_of_models_is_compiled_measured_and_reported(npf: Any, capsys: pytest.CaptureFixture[str]) -> None:
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
    npf.print_reports(reports)
    titles, *rows = capsys.readouterr().out.splitlines()
    assert titles.split() == [
        *("throughput_avg", "latency_ms_p50", "latency_ms_p99", "n_models", "pipeline_size", "workers_per_model"),
        *("batch_size", "model_filename"),
    ]
    assert len(rows) == 4
    assert json.loads(Path(npf.write_json(reports)).read_text("utf-8")) == reports
    with Path(npf.write_csv(reports, "sum.csv")).open(newline="", encoding="utf-8") as file:
        assert [row["throughput_avg"] for row in csv.DictReader(file)] == [str(r["throughput_avg"]) for r in reports]
    moved = npf.model_index.move(name, "moved.json", "others")
    npf.model_index.delete(moved)
    assert not [*Path("models").iterdir(), *Path("others").iterdir()]


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
