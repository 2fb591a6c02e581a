"""Prices, and what a training costs at them."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from neurontools import catalog
from neurontools.estimate import EstimateError, Interval, estimate, read_prices
from neurontools.estimate.cost import cost, usd
from neurontools.estimate.prices import list_prices
from tests.harness.counted_runs import counted


def test_the_first_article_s_bill_is_time_and_price() -> None:
    assert usd(24.725, 6033) == pytest.approx(41.43, abs=0.01)
    assert usd(37.69, 6553) == pytest.approx(68.61, abs=0.01)


def test_list_prices_say_where_and_when_they_were_read() -> None:
    on_demand, reserved, *_ = list_prices("trn1.32xlarge")
    assert (on_demand.kind, on_demand.usd_per_hour, on_demand.region) == ("on demand", 21.5, "us-east-1")
    assert on_demand.read_on == date(2026, 7, 20)
    assert on_demand.text() == "$21.5/h on demand (us-east-1, 2026-07-20)"
    assert reserved.usd_per_hour == 8.197


def test_each_price_of_the_catalog_has_a_source_with_a_region() -> None:
    for name in catalog.names():
        for price in list_prices(name):
            assert price.source != "not written down", price
            assert price.kind == "SageMaker" or price.region, price


def test_a_type_without_a_list_price_costs_what_nobody_knows() -> None:
    assert list_prices("trn2u.48xlarge") == []
    assert estimate(counted(), "trn2u.48xlarge").costs == ()


def test_a_price_is_old_after_a_year() -> None:
    price = list_prices("trn1.32xlarge")[0]
    assert not price.is_old(date(2027, 7, 20))
    assert price.is_old(date(2027, 7, 21))


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


def test_costs_follow_from_time_and_samples() -> None:
    price = list_prices("inf2.xlarge")[0]
    made = cost(price, Interval(1.0, 2.0), 16.0, 3_600_000)
    assert made.thousand_steps_usd.low == pytest.approx(0.7582 / 3.6)
    assert made.million_samples_usd is not None
    assert made.epoch_usd is not None
    assert made.million_samples_usd.high == pytest.approx(2 * 0.7582 / 3600 / 16 * 1e6)
    assert made.epoch_usd.high == pytest.approx(3.6 * made.million_samples_usd.high)
    unknown = cost(price, Interval(1.0, 2.0), None, 3_600_000)
    assert (unknown.million_samples_usd, unknown.epoch_usd) == (None, None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "there is no [[price]]"),
        ("[[price]]\nusd_per_hour = 1\n", "a price has no instance_type"),
        ('[[price]]\ninstance_type = "a"\n', "usd_per_hour is None"),
        ('[[price]]\ninstance_type = "a"\nusd_per_hour = -1\n', "usd_per_hour is -1"),
        ('[[price]]\ninstance_type = "a"\nusd_per_hour = true\n', "usd_per_hour is True"),
        ('[[price]]\ninstance_type = "a"\nusd_per_hour = 1\ndate = "May"\n', "date is 'May'"),
        ('[[price]]\ninstance_type = "a"\nusd_per_hour = 1\ncurrency = "EUR"\n', "a price has no 'currency'"),
        ("price = [", "write [[price]] tables"),
    ],
)
def test_a_wrong_file_is_a_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(EstimateError) as refused:
        read_prices(path)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
