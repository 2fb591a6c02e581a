"""Texts of the Neuron runtime: the log of a failed execution, and ranges of steps to profile."""

from __future__ import annotations

import pytest

from neurontools.driver.neuron_runtime import (
    InvalidProfileSteps,
    NrtStatus,
    execution_failure_lines,
    parse_profile_steps,
)


def test_the_log_of_a_failed_execution() -> None:
    cause = ("TDRV:exec_request_process_errors", "(FATAL) DMA abort")
    lines = execution_failure_lines([cause], NrtStatus.EXEC_HW_ERR_DMA_ABORT, [("Nodename", "h")], 42, 1.7e9 + 0.25)
    begin = "2023-Nov-14 22:13:20.250000    42:42    ERROR "
    assert list(lines) == [
        f"{begin} TDRV:exec_request_process_errors             (FATAL) DMA abort",
        f"{begin} NMGR:dlr_infer                               Inference completed with err: 1203",
        *(
            f"{begin}  NRT:nrt_infodump                            {text}"
            for text in (
                "------------->8------------[ cut here ]------------>8-------------",
                "Nodename: h",
                "Failure: NRT_EXEC_HW_ERR_DMA_ABORT in nrt_execute()",
                "------------->8------------[ cut to here ]------------>8-------------",
            )
        ),
    ]


def test_steps_to_profile() -> None:
    for text, steps in {
        "": (1, None),
        "10:15": (10, 15),
        "10:": (10, None),
        ":15": (1, 15),
        "10": (10, 10),
        "1:1": (1, 1),
        "999999999": (999_999_999, 999_999_999),
    }.items():
        assert parse_profile_steps(text) == steps
    for text in ("x", ":", "1:2:3", "-1", "1 2", "1234567890", "\u0663"):
        with pytest.raises(InvalidProfileSteps, match="no steps; give the first and the last one, such as"):
            parse_profile_steps(text)
    for text in ("5:2", "0:2", "0", ":0"):
        with pytest.raises(InvalidProfileSteps, match="steps count from 1, and the last one must not be before the fi"):
            parse_profile_steps(text)
