"""Contrast and distance of colours, as eyes see them."""

from __future__ import annotations

import math

DARK_BACKGROUND, LIGHT_BACKGROUND = "#1e1e1e", "#ffffff"


def _linear(colour: str) -> list[float]:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def contrast(one: str, other: str) -> float:
    """Returns the contrast ratio of WCAG 2, from 1 to 21."""
    low, high = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in map(_linear, (one, other)))
    return (high + 0.05) / (low + 0.05)


def distance(one: str, other: str) -> float:
    """Returns the distance of two colours in OKLab, in which equal distances look equal. Black to white is 1."""
    return math.dist(_oklab(one), _oklab(other))


def _oklab(colour: str) -> tuple[float, float, float]:
    red, green, blue = _linear(colour)
    long = math.cbrt(0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue)
    middle = math.cbrt(0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue)
    short = math.cbrt(0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )
