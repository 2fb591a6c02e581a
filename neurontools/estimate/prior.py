"""What is known of a model that nobody has measured: the spread of published rows."""

from __future__ import annotations

from neurontools.estimate.interval import Interval

ETA = Interval(0.297 / 1.8, 0.297 * 1.8)
"""The share of the peak that training reaches. In seven families of published rows it is 0.15 to 0.70, 0.297 in the
middle with a factor of 1.8 around it."""

LAUNCH_SECONDS = 0.27e-3
"""What launching a small graph takes: fitted on AWS's rows of inference."""

TENSOR_SECONDS = 67e-6
"""What each tensor adds to a launch of a training's graph at the most: in the ViT article 611 tensors went with 28 to
41 ms. How it is for other models nobody has published, so the low end of an estimate has none of it."""

BUS_BYTES_PER_SECOND = Interval(52.8e9, 103.9e9)
"""Of an all-reduce inside an instance, 2 ranks and 16: AWS's guide to nccom-test."""

COLLECTIVE_SECONDS = Interval(58e-6, 300e-6)
"""What a small all-reduce takes, 2 ranks and 16: from the same guide."""

FAMILIES_HELD, FAMILIES = 5, 7
"""In how many families of published training rows the measured step lies in the interval: `scripts/estimate-errors`."""
