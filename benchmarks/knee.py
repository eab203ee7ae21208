"""Tests the search for a known knee, on curves and run-to-run variation of many kinds.

    python benchmarks/knee.py                    # 100 searches per row; minutes on two cores
    python benchmarks/knee.py --searches 10 --only cliff --only drifting
    python benchmarks/knee.py --first 1000       # other knees and variation than the method was tuned on
    python benchmarks/knee.py --held-out         # families that nobody looked at while it was made

Curves, variations and searches: curves.py. A sweep is told a maximum of 4096, and
limits C / r are drawn between 20 and 1200, but where a row says otherwise. How many runs a precision takes
depends on the slope s of ln efficiency at the knee: with all runs at the knee, (variation / s / 0.0125)^2 for
5 %. At a variation of 1 % that is 3 for soft p=6, 9 for p=3, 27 for usl,
and for mva 49 at C / r = 20, 11 at 80, 2 at 320.

The answer is that of `analysis.knee.find_knee` on the runs. Columns, all medians: runs; error of N_AU90 where
a number was given; how often the answer holds the truth (the interval, 1 % wider at either end, the side on
which it says that the knee is, or the two counts between which "not identifiable" says that it is); width of
the interval; how often it was not identifiable.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: the pool below is the parallelism

import curves
import numpy as np
import typer

from emulator.analysis.knee import find_knee
from emulator.analysis.search import KneeSearch
from emulator.record.result import Point

HEAD = "curve                 noise      sd %   runs  error %  holds  interval %  not identifiable"


@dataclass(frozen=True)
class Row:
    """One family: a curve under a kind of run-to-run variation."""

    curve: str
    variation: Callable[[np.random.Generator, float], curves.Variation]
    sd: float = 0.01
    limits: tuple[float, float] = curves.LIMITS
    maximum: int = 4096

    @property
    def name(self) -> str:
        low, high = self.limits
        shown = self.curve if self.limits == curves.LIMITS else f"{self.curve} {low:g}-{high:g}"
        return f"{shown:21} {self.variation.__name__:9} {100 * self.sd:5.1f}"


def rows() -> list[Row]:
    found = [Row(name, curves.white) for name in curves.SMOOTH]
    found += [
        Row("roofline", curves.white, limits=(9000, 20000)),  # no knee
        Row("roofline", curves.white, limits=(0.3, 0.85)),  # one process starves
        Row("roofline", curves.white, limits=(2, 9), maximum=16),
        Row("roofline", curves.white, limits=(2.7, 2.70001), maximum=16),  # a knee at 3.0
    ]
    for name in ("roofline", "soft p=3", "mva"):
        found += [Row(name, curves.white, sd) for sd in (0.003, 0.03)]
    for name in ("roofline", "soft p=6", "soft p=3", "usl", "mva", "collapse", "cliff 0.5"):
        found.append(Row(name, curves.drifting, 0.03))
    for kind in (curves.sliding, curves.passing):
        found += [Row(name, kind) for name in ("roofline", "soft p=3", "mva", "usl")]
    found.append(Row("mva", curves.skewed, 0.02))
    found += [Row(name, curves.heavy) for name in ("roofline", "soft p=3", "mva", "collapse", "cliff 0.5")]
    found += [Row(name, curves.white) for name in curves.BROKEN]
    return [*found, Row("cliff 0.5", curves.white, 0.03), Row("plateau 0.86", curves.white, 0.02)]


def untuned() -> list[Row]:
    """Families that nobody looked at while the method was made."""
    return [
        *(Row(name, curves.white) for name in ("stretched", "staircase", "second tier")),
        Row("roofline", curves.walking),
        Row("soft p=4", curves.jumping),
        Row("mva", curves.losing, 0.02),
        Row("cut off", curves.tailed, 0.02),
    ]


@dataclass(frozen=True)
class Outcome:
    """One search."""

    runs: int
    kind: str
    error: float
    """Relative; nan without a number."""
    holds: bool
    width: float
    """Relative width of the interval; nan without one."""


def point(ranks: int, efficiency: float) -> Point:
    """A count that nothing disturbed, of samples of a byte, one a second and process."""
    return Point(
        ranks=ranks, hosts=(), epochs=2, steps=10, samples=100, bytes=100, left_out=0, seconds=10.0,
        samples_per_second=efficiency * ranks, bytes_per_second=efficiency * ranks,
        ideal_samples_per_second=ranks, x_ideal=efficiency, au=efficiency, x_ideal_first=efficiency,
        au_first=efficiency, wait_share=1 - efficiency, barrier_share=0.0,
    )  # fmt: skip


def outcome(number: int, row: Row) -> Outcome:
    truth, random = curves.trial_random(row.curve, row.sd, number, row.limits)
    search = KneeSearch(maximum=row.maximum)
    found = curves.searched(truth, row.variation(random, row.sd), search)
    knee, answer = truth.knee(), find_knee([point(run.ranks, run.efficiency) for run in found.runs])
    counts, kind = [run.ranks for run in found.runs], answer.kind or ""
    sides = {"beyond": (max(counts), math.inf), "below": (0.0, min(counts))}
    low, high = answer.interval or sides.get(kind) or (answer.fed or 0.0, answer.starved or math.inf)
    holds = low * 0.99 <= knee <= high * 1.01
    middle = answer.n_au or math.nan
    width = (high - low) / middle
    error = middle / knee - 1 if 0 < knee < math.inf else math.nan
    return Outcome(runs=len(found.runs), kind=kind, error=error, holds=holds, width=width)


def line(row: Row, found: list[Outcome]) -> str:
    def middle(values: list[float]) -> str:
        known = [abs(value) for value in values if math.isfinite(value)]
        return f"{np.median(known):.3g}" if known else ""

    runs, errors = middle([float(o.runs) for o in found]), middle([100 * o.error for o in found])
    width = middle([100 * o.width for o in found])
    unsure, holds = np.mean([o.kind == "not-identifiable" for o in found]), np.mean([o.holds for o in found])
    shown = f"{unsure:17.2f}" if unsure else ""
    return f"{row.name} {runs:>6} {errors:>8} {holds:6.2f} {width:>11} {shown}".rstrip()


def main(
    searches: int = 100, first: int = 0, only: list[str] | None = None, held_out: bool = False, jobs: int = 2
) -> None:
    """Print a line for each row, or for those whose name contains one of `only`, from search `first` on."""
    print(HEAD)
    with ProcessPoolExecutor(jobs) as pool:
        for row in untuned() if held_out else rows():
            if only and not any(part in row.name for part in only):
                continue
            outcomes = pool.map(partial(outcome, row=row), range(first, first + searches), chunksize=4)
            print(line(row, list(outcomes)), flush=True)


if __name__ == "__main__":
    typer.run(main)
