"""Families of curves that saturate: efficiency against u = ln(N / K), K the scale in processes.

    soft     (1 - d) (1 + x^p)^(-(1 - g)/p) / (1 + k max(0, x - 1))    x = N / K
    usl      (1 - d) / (1 + q x / 2 + (1 - q) x^2)

`soft` is the p-norm of "N processes at their own rate" and "the limit K": p large is a hard roofline, p = 1
a rectangular hyperbola; with k > 0 throughput declines beyond the limit, with g > 0 it still grows there, as
N^g: a cache or a slower tier delivers some of the samples. `usl` is Gunther's universal scalability law
(1993) with contention q and coherency 1 - q. d is what a process loses even when alone: latency that nothing
hides. Everything depends on N / K alone, so knee and saturation of a shape are constants times K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from emulator.analysis.parts import Floats

Indices = NDArray[np.intp]

SHARPNESS = (1.0, 1.2, 1.4, 1.7, 2.0, 2.4, 2.8, 3.4, 4.0, 4.8, 5.6, 6.7, 8.0, 12.0, 20.0, 60.0)
"""p of `soft`. With steps of 40 %, knees of curves between two of them came out up to 2 % too low."""
DECLINE = (0.0, 0.2, 0.45, 1.0)
"""k of `soft`, for p >= 2."""
GROWTH = tuple((p, g) for p in (2.8, 6.7, 20.0, 60.0) for g in (0.25, 0.45, 0.65))
"""p and g of `soft`, for k = 0."""
CONTENTION = (0.0, 0.15, 0.3, 0.45, 0.6, 0.72, 0.85)
"""q of `usl`."""
OVERHEAD = (0.0, 0.005, 0.01, 0.017, 0.025, 0.035, 0.05, 0.065, 0.08, 0.11, 0.15)
"""d of both."""
LOWEST, HIGHEST = -12.0, 9.0
"""ln(N / K) that is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Every shape of the grid, column by column; a shape's number is its row."""

    soft: NDArray[np.bool_]
    power: Floats
    """p of `soft`, q of `usl`."""
    decline: Floats
    """k of `soft`; 0 for `usl`."""
    growth: Floats
    """g of `soft`; 0 for `usl`."""
    overhead: Floats
    """d."""
    log_prior: Floats
    """A decline or a growth is half as likely as none; overhead is less likely the larger, exp(-d / 0.025):
    a process alone is expected to come near its ideal rate."""

    def __len__(self) -> int:
        return len(self.power)


@cache
def shapes() -> Shapes:
    """The grid, about 800 shapes."""
    soft = [(True, p, k, 0.0) for p in SHARPNESS for k in (DECLINE if p >= 2 else (0.0,))]
    soft += [(True, p, 0.0, g) for p, g in GROWTH]
    usl = [(False, q, 0.0, 0.0) for q in CONTENTION]
    rows = [(*row, d) for row in soft + usl for d in OVERHEAD]  # overhead runs fastest
    kind, power, decline, growth, overhead = (np.array(column) for column in zip(*rows, strict=True))
    prior = -math.log(2) * ((decline > 0) | (growth > 0)) - overhead / 0.025
    prior -= math.log(np.exp(prior).sum())
    return Shapes(
        soft=kind.astype(bool),
        power=power,
        decline=decline,
        growth=growth,
        overhead=overhead,
        log_prior=prior,
    )


def _log_bare(u: Floats, curve: Indices) -> Floats:
    """ln efficiency at u = ln(N / K) of shapes without overhead; the first of each OVERHEAD are numbered."""
    grid, first = shapes(), curve * len(OVERHEAD)
    soft, power = grid.soft[first], grid.power[first]
    x = np.exp(u)
    p = np.where(soft, power, 1.0)
    q = np.where(soft, 0.0, power)
    steep = p * u
    bend = np.where(steep > 30, steep, np.log1p(np.exp(np.minimum(steep, 30.0))))
    bend *= (1 - grid.growth[first]) / p
    bend += np.log1p(grid.decline[first] * np.maximum(0.0, x - 1))
    return np.asarray(-np.where(soft, bend, np.log1p(x * (0.5 * q + (1 - q) * x))))


def log_efficiency(ratio: Floats, shape: Indices) -> Floats:
    """ln efficiency at ratio = ln(N / K) for the numbered shapes; `ratio` broadcasts against `shape`."""
    return np.asarray(_log_bare(ratio, shape // len(OVERHEAD)) + np.log1p(-shapes().overhead[shape]))


def grid_log_efficiency(log_n: float, log_scales: Floats, which: Indices) -> Floats:
    """ln efficiency at one count for every scale x shape, flat, the shape running fastest.

    Shapes that differ only in overhead share one curve.
    """
    first, member = np.unique(which // len(OVERHEAD), return_inverse=True)
    curve = _log_bare((log_n - log_scales)[:, None], first)
    return np.asarray(curve[:, member] + np.log1p(-shapes().overhead[which])).ravel()


@cache
def crossing_ratios(threshold: float) -> Floats:
    """ln(N / K) where each shape falls through `threshold`; LOWEST when it is never above.

    Every shape is non-increasing in N, so bisection finds it.
    """
    shape = np.arange(len(shapes()))
    low, high = np.full(len(shape), LOWEST), np.full(len(shape), HIGHEST)
    for _ in range(50):
        middle = (low + high) / 2
        above = log_efficiency(middle, shape) >= math.log(threshold)
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return low


@cache
def saturation_ratios() -> Floats:
    """ln(C / (r K)) of each shape, C its largest throughput: maximum of ln x + ln efficiency on a grid.

    Of a shape that still grows it is that at the grid's end; `find_knee` bounds N* by what was measured.
    """
    shape = np.arange(len(shapes()))
    u = np.linspace(-3, HIGHEST, 1200)[:, None]
    return np.asarray((log_efficiency(u, shape[None, :]) + u).max(axis=0))
