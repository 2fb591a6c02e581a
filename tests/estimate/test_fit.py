"""Whether a training fits."""

from __future__ import annotations

from neurontools.estimate import estimate
from tests.harness.counted_runs import GIB, counted


def test_what_is_left_and_the_batch_that_fills_it() -> None:
    fit = estimate(counted(), "trn1.32xlarge").fit
    assert fit.fits
    assert (fit.headroom_bytes, fit.rest_bytes) == (6 * GIB, 6 * GIB)
    assert fit.largest_batch == 16  # 4 GiB stay, and 8 samples take 6 of the other 12


def test_too_much_memory_does_not_fit() -> None:
    fit = estimate(counted(hbm_peak_bytes=17 * GIB), "trn1.32xlarge").fit
    assert not fit.fits
    assert fit.headroom_bytes == -GIB


def test_more_workers_than_cores_do_not_fit() -> None:
    fit = estimate(counted(workers=3), "inf2.xlarge").fit
    assert not fit.fits
    assert (fit.worker_count, fit.core_count) == (3, 2)


def test_weights_that_leave_no_room_have_no_batch() -> None:
    assert (
        estimate(counted(optimizer_state_bytes=20 * GIB, hbm_peak_bytes=30 * GIB), "trn1.32xlarge").fit.largest_batch
        == 0
    )


def test_without_the_parts_there_is_no_largest_batch() -> None:
    fit = estimate(counted(optimizer_state_bytes=None), "trn1.32xlarge").fit
    assert (fit.rest_bytes, fit.largest_batch) == (None, None)
