"""What a training costs at which prices, and what is told of an estimate."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from neurontools import catalog
from neurontools.estimate import Calibration, CalibrationRow, EstimateError, Interval, estimate, read_prices, read_rows
from neurontools.estimate.calibration import (
    BEST_ETA,
    DECODER_ETA,
    IMAGE_VCPU_SECONDS,
    ROWS,
    ROWS_HELD,
    UNMEASURED_TENSOR_SECONDS,
)
from neurontools.estimate.instances import Price, list_prices
from neurontools.estimate.parallelism import scale_run
from neurontools.estimate.report import dollars, estimate_document, format_estimates, peer_document
from neurontools.estimate.training import peer_measurement, training_cost
from tests.harness.counted_runs import GIB, counted, summary
from tests.harness.paths import ROOT

TODAY = date(2026, 11, 22)


def test_list_prices_say_where_and_when_they_were_read_and_are_old_after_a_year() -> None:
    on_demand, reserved, *_ = list_prices("trn1.32xlarge")
    assert (on_demand.kind, on_demand.usd_per_hour, on_demand.region) == ("on demand", 21.5, "us-east-1")
    assert on_demand.read_on == date(2026, 7, 20)
    assert on_demand.text() == "$21.5/h on demand (us-east-1, 2026-07-20)"
    assert reserved.usd_per_hour == 8.197
    assert not on_demand.is_old(date(2027, 7, 20))
    assert on_demand.is_old(date(2027, 7, 21))


def test_each_price_of_the_catalog_has_a_source_with_a_region() -> None:
    for name in catalog.names():
        for price in list_prices(name):
            assert price.source != "not written down", price
            assert price.kind == "SageMaker" or price.region, price
    assert list_prices("trn2u.48xlarge") == []
    assert estimate(counted(), "trn2u.48xlarge").costs == ()


def test_one_s_own_prices_come_first(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(
        '[[price]]\ninstance_type = "trn1.32xlarge"\nusd_per_hour = 9.5\nkind = "spot"\nregion = "eu-north-1"\n'
        'date = 2026-11-01\n[[price]]\ninstance_type = "p4d.24xlarge"\nusd_per_hour = 21.96\n'
    )
    prices = read_prices(path)
    costs = estimate(counted(), "trn1.32xlarge", prices=prices).costs
    assert [each.price.usd_per_hour for each in costs] == [9.5, 21.5, 8.197, 24.725]
    assert costs[0].price.text() == "$9.5/h spot (eu-north-1, 2026-11-01)"
    (without,) = (price for price in prices if price.instance_type == "p4d.24xlarge")
    assert (without.kind, without.region, without.read_on, without.source) == ("own price", None, None, str(path))


def test_costs_follow_from_time_and_samples() -> None:
    price = list_prices("inf2.xlarge")[0]
    made = training_cost(price, Interval(1.0, 2.0), 16.0, 3_600_000)
    assert made.thousand_steps_usd is not None
    assert made.thousand_steps_usd.low == pytest.approx(0.7582 / 3.6)
    assert made.million_samples_usd is not None
    assert made.epoch_usd is not None
    assert made.million_samples_usd.high == pytest.approx(2 * 0.7582 / 3600 / 16 * 1e6)
    assert made.epoch_usd.high == pytest.approx(3.6 * made.million_samples_usd.high)
    unknown = training_cost(price, Interval(1.0, 2.0), None, 3_600_000)
    assert (unknown.million_samples_usd, unknown.epoch_usd) == (None, None)


PRICE = '[[price]]\ninstance_type = "a"\n'
ROW = '[[row]]\ninstance_type="a"\ndtype="bf16"\nbatch=8\nsamples_per_second=1\n'


@pytest.mark.parametrize(
    ("read", "text", "told"),
    [
        (read_prices, "", "there is no [[price]]"),
        (read_prices, "[[price]]\nusd_per_hour = 1\n", "a price has no instance_type"),
        (read_prices, PRICE, "usd_per_hour is None"),
        (read_prices, PRICE + "usd_per_hour = -1\n", "usd_per_hour is -1"),
        (read_prices, PRICE + "usd_per_hour = true\n", "usd_per_hour is True"),
        (read_prices, PRICE + 'usd_per_hour = 1\ndate = "May"\n', "date is 'May'"),
        (read_prices, PRICE + 'usd_per_hour = 1\ncurrency = "EUR"\n', "a price has no 'currency'"),
        (read_prices, "price = [", "write [[price]] tables"),
        (read_rows, "", "there is no [[row]]"),
        (read_rows, "row = 3", "there is no [[row]]"),
        (read_rows, "[[row]]\nbatch = 8\n", "a row has no dtype"),
        (read_rows, ROW + "speed=2\n", "a row has no 'speed'"),
        (read_rows, ROW.replace("bf16", "b"), "dtype 'b'"),
        (read_rows, ROW.replace("=8", "=-8"), "batch -8"),
        (read_rows, ROW.replace("=1", "=nan"), "samples_per_second nan"),
        (read_rows, "[[row", "write [[row]] tables"),
        (read_rows, "{", "write [[row]] tables"),
        (read_rows, "{}", "no list of ranks"),
        (read_rows, json.dumps(summary(is_simulated=True)), "simulated NeuronCores"),
        (read_rows, None, "No such file"),
    ],
)
def test_a_wrong_file_is_a_line(tmp_path: Path, read: Callable[[Path], object], text: str | None, told: str) -> None:
    path = tmp_path / "file"
    if text is not None:
        path.write_text(text)
    with pytest.raises(EstimateError) as refused:
        read(path)
    assert told in str(refused.value)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


def test_counted_listed_and_estimated_stand_apart() -> None:
    made = [estimate(counted(), "trn1.32xlarge", epoch_samples=1000)]
    assert "Not predicted" not in format_estimates(made, TODAY)
    told = format_estimates(made, TODAY, lists_unpredicted=True)
    for line in (
        "a step   2.0 TFLOP (100% fp32), 1 execution",
        "HBM (counted)    10.0 GiB of 16.0 GiB a core, 6.0 GiB left",
        "weights 1.0 GiB, gradients 1.0 GiB, optimizer 2.0 GiB, activations and the rest 6.0 GiB",
        "16 a worker, if all but weights, gradients and optimizer grows with it",
        "cores (counted)  1 used of 32 paid",
        "price (list)     $21.5/h on demand (us-east-1, 2026-07-20)",
        "to $0.247 an epoch\n",
        "to $7.72 with all 32 cores as busy, for which you pay\n",
        "\n\nwhat if (estimate)\n",
        "Not predicted: autocast (AMP)",
    ):
        assert line in told
    assert f"contained the measurement for {ROWS_HELD} of {ROWS} published rows" in " ".join(told.split())
    assert "step (estimate)" in told
    assert "Warning" not in told
    assert "older than a year" in format_estimates([estimate(counted(), "trn1.32xlarge")], date(2028, 1, 1))
    assert max(map(len, told.splitlines())) <= 130


CALIBRATION = Calibration.of([CalibrationRow("trn1.32xlarge", "fp32", 8, 8 / 0.3)], counted().flops / 8)
UNCOUNTED = {"samples_total": None, "batches_total": None, "batch_samples": None}


@pytest.mark.parametrize(
    ("changes", "instance_type", "calibration", "lines"),
    [
        (
            {"hbm_peak_bytes": 20 * GIB},
            "trn1.32xlarge",
            None,
            ["trn1.32xlarge      DOES NOT FIT: 4.0 GiB too much\n", "  samples/s        -\n", "(estimate)  -: the run"],
        ),
        ({"workers": 3}, "inf2.xlarge", None, ["DOES NOT FIT: 3 workers, 2 cores"]),
        (UNCOUNTED, "trn2u.48xlarge", None, ["  largest batch    -\n", "  samples/s        -\n", "with --prices"]),
        ({}, "trn1.32xlarge", CALIBRATION, ["calibrated on 1 measured row(s)"]),
    ],
)
def test_what_does_not_fit_is_unknown_or_was_calibrated_is_said(
    changes: dict[str, object], instance_type: str, calibration: Calibration | None, lines: list[str]
) -> None:
    told = format_estimates([estimate(counted(**changes), instance_type, calibration=calibration)], TODAY)
    assert [line for line in lines if line not in told] == []
    assert ("unmeasured model of the family" in told) == (calibration is None)


def test_several_types_are_a_table() -> None:
    names = ("trn1.32xlarge", "inf2.xlarge", "trn2.48xlarge", "trn2u.48xlarge")
    told = format_estimates([estimate(counted(), name) for name in names], TODAY)
    rows = [line for line in told.splitlines() if line.startswith(("| trn", "| inf"))]
    assert len(rows) == 4
    assert "(Capacity Block)" in rows[2]
    assert rows[3].rstrip(" |").endswith("-")
    assert "ALL CORES BUSY" in told
    full = format_estimates([estimate(counted(workers=2), name) for name in ("inf2.xlarge", "trn1.2xlarge")], TODAY)
    assert "ALL CORES BUSY" not in full


def test_what_does_not_fit_has_no_times_and_measurements_of_other_instances_are_marked() -> None:
    row = CalibrationRow("p4d.24xlarge", "bf16", batch=32, samples_per_second=1392.64, workers=8)
    price = Price("p4d.24xlarge", "SageMaker", 37.69, None, None, "the article")
    peers = [peer_measurement(row, [price], 3_600_000), peer_measurement(replace(row, workers=None), [], None)]
    made = [estimate(counted(workers=workers), "inf2.xlarge", epoch_samples=3_600_000) for workers in (2, 3)]
    told = format_estimates(made, TODAY, peers=peers)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in told.splitlines() if line.startswith("| ")]
    unknown = ["-"] * 3
    assert cells[3][3:8] == ["NO: 3 workers, 2 cores", "3 of 2", *unknown]
    assert cells[3][9:] == unknown
    assert cells[4] == [
        *("p4d.24xlarge (your row)", "32", *unknown, "183.8 ms", "-", "1,393", "$37.69 (SageMaker)"),
        *("$1.92", "$7.52", "$27.06"),
    ]
    assert cells[5] == ["p4d.24xlarge (your row)", "32", *unknown, "-", "-", "1,393", "-", *unknown]
    assert "measurements that you gave" in told
    assert (row.is_peer, replace(row, instance_type="trn1.2xlarge").is_peer) == (True, False)
    assert peer_document(peers[0])["costs"][0]["million_samples_usd"] == pytest.approx([7.5176] * 2, rel=1e-4)
    assert estimate_document(made[1])["estimated"]["step_seconds"] is None


def test_other_batches_are_called_calculated() -> None:
    run = counted()
    for names in (["trn1.32xlarge"], ["trn1.32xlarge", "inf2.xlarge"]):
        for batch, origin in ((None, "(counted)"), (16, "(calculated)")):
            made = [estimate(scale_run(run, None, batch), name) for name in names]
            told = format_estimates(made, TODAY, run)
            assert {"(counted)", "(calculated)"} & set(told.split()) == {origin}


def test_dollars_have_three_digits() -> None:
    told = {0.0: "$0.00", 5.687e-05: "$0.0000569", 0.0504: "$0.0504", 0.999: "$0.999", 4.561: "$4.56", 1234.5: "$1,234"}
    assert {usd: dollars(usd) for usd in told} == told


def test_the_document_has_the_same_and_is_json() -> None:
    made = estimate(counted(), "trn1.32xlarge")
    read = json.loads(json.dumps(estimate_document(made), allow_nan=False))
    assert read["counted"]["largest_batch"] == 16
    assert read["estimated"]["step_seconds"] == [made.step.total.low, made.step.total.high]
    assert read["costs"][0]["date"] == "2026-07-20"
    assert read["coverage"] == [ROWS_HELD, ROWS]
    assert {each["change"] for each in read["what_ifs"]} == {each.change for each in made.what_ifs}


def test_the_errors_against_published_trainings_are_those_of_the_documents(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "scripts" / "estimate-errors"), run_name="__main__")
    assert not ended.value.code
    printed = capsys.readouterr().out
    mean = re.search(r"mean error of the 6 held out \| \| \| ([\d.]+)% \| \| ([\d.]+)%", printed)
    assert mean is not None
    assert max(float(mean[1]), float(mean[2])) <= 10
    for kind in ("all", "vision transformer", "BERT-like encoder", "decoder LLM"):
        held = re.search(rf"\*\*{kind}\*\*, width 4 \| \d+ \| \| \| ([\d.]+) \| (\d+) of (\d+) \|", printed)
        assert held is not None
        assert float(held[1]) <= 1.5
        assert int(held[2]) >= 0.8 * int(held[3])
        assert kind != "all" or (int(held[2]), int(held[3])) == (ROWS_HELD, ROWS)
    assert (
        f"fitted to all: {BEST_ETA} of the peak, {1e6 * UNMEASURED_TENSOR_SECONDS:.0f} us a tensor, "
        f"{1e3 * IMAGE_VCPU_SECONDS:.0f} ms an image; decoders {DECODER_ETA} of the peak" in printed
    )
    assert printed.strip() in (ROOT / "docs" / "estimate.md").read_text()
