"""What a training costs at which prices, and what is told of an estimate."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from neurontools import catalog
from neurontools.estimate import EstimateError, estimate, read_prices, read_rows
from neurontools.estimate.calibration import (
    BEST_ETA,
    DECODER_ETA,
    IMAGE_VCPU_SECONDS,
    ROWS,
    ROWS_HELD,
    UNMEASURED_TENSOR_SECONDS,
)
from neurontools.estimate.instances import list_prices
from neurontools.estimate.report import dollars
from tests.harness.counted_runs import counted, summary
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


def test_dollars_have_three_digits() -> None:
    told = {0.0: "$0.00", 5.687e-05: "$0.0000569", 0.0504: "$0.0504", 0.999: "$0.999", 4.561: "$4.56", 1234.5: "$1,234"}
    assert {usd: dollars(usd) for usd in told} == told


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
