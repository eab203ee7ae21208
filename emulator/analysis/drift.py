"""Drift within a series, and Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from emulator.analysis.parts import Floats

WINDOWS = 20
"""Windows that the drift is judged on; their means are nearly independent even when steps are not."""


def drift(values: Sequence[float] | Floats) -> float:
    """Return the change along a straight line through a series, from first to last, as a share of its mean.

    0 where the slope may be zero by Student's t at the two-sided level of 99 %, and below 8 observations.
    """
    # Windows instead of single steps, because neighbouring steps are correlated and would make any slope look
    # certain (method of batch means, Law 2015, chapter 9).
    series = np.asarray(values, dtype=np.float64)
    if len(series) < 8:
        return 0.0
    means = np.array([part.mean() for part in np.array_split(series, min(WINDOWS, len(series) // 2))])
    middle = float(means.mean())
    x = np.linspace(-0.5, 0.5, len(means))
    slope = float(x @ means / (x @ x))
    freedom = len(means) - 2
    rest = means - middle - slope * x
    error = math.sqrt(float(rest @ rest) / freedom / float(x @ x))
    return slope / middle if middle and abs(slope) > student_t(0.99, freedom) * error else 0.0


def student_t(level: float, freedom: int) -> float:
    """Two-sided quantile: a Student t of `freedom` >= 1 lies within +- it with probability `level` (0 to 1).

    By bisection on the exact distribution for whole degrees (Abramowitz and Stegun 26.7.3, 26.7.4).
    """
    low, high = 0.0, math.pi / 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < level else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """P(|t| <= sqrt(freedom) tan(angle))."""
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2 == 1
    term, total = (cosine, cosine) if odd else (1.0, 1.0)
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    if not odd:
        return sine * total
    return 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))
