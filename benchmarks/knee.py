"""How well the search finds a knee that is known, beside a 32-point linear sweep and Kneedle.

    python benchmarks/knee.py                  # 50 searches per row, about fifteen minutes on two cores
    python benchmarks/knee.py --searches 10
    python benchmarks/knee.py --first 1000     # other knees and other noise than the method was tuned on
    python benchmarks/knee.py --cost step      # counts beyond the knee are dear (analysis.search.step_cost)

Curves, seeds and searches: tests/analysis/synthetic_curves.py. The sweep is told a maximum between 1.2 and
2.4 knees, which nobody knows beforehand, and is read without a model (tests/analysis/model_free.py). Kneedle
(Satopaa et al. 2011; `pip install kneed`, left out when it is not there) reads the same sweep's throughput
and is compared with both N_AU90 and C / r, the better of the two counting.

Limits C / r are drawn between 20 and 1200. How many runs a precision takes depends on the slope s of ln
efficiency at the knee: with all runs at the knee, (noise / s / 0.0125)^2 for 5 %. At 1 % noise that is 3 for
soft p=6, 9 for p=3, 27 for usl, and for mva 49 at C / r = 20, 11 at 80, 2 at 320.

Errors are of N_AU90. "time of runs" is in units of a run whose ranks never wait, all with as many steps;
"ms/N" the longest mean CPU time that a search took to decide on a count.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "analysis"))

from model_free import crossing
from synthetic_curves import FORMS, Curve, trial, trial_random

from emulator.analysis.search import Search, run_cost, step_cost

NOISES = (0.003, 0.01, 0.03)
SWEEP = 32
HEAD = """\
curve     noise |    runs   |   error, %  | 95 % interval | time of   CPU |   sweep, %  | Kneedle, %
              % |  med  p90 |   med   p90 | cover width,% |    runs  ms/N |   med   p90 |   med   p90"""


@dataclass(frozen=True)
class Outcome:
    """One search, and one sweep of the same curve. Errors are relative."""

    runs: int
    error: float
    covered: bool
    width: float
    effort: float
    seconds: float
    """Mean CPU time of deciding on one count."""
    sweep: float
    kneedle: float


def both(job: tuple[str, float, int], cost: str) -> Outcome:
    name, noise, number = job
    truth, random = trial_random(name, noise, number)
    search = Search(maximum=4096, cost=step_cost if cost == "step" else run_cost)
    begin = time.process_time()
    found = trial(truth, noise, random, search)
    seconds = (time.process_time() - begin) / len(found.runs)
    counts = linear_counts(truth)
    efficiency = [truth.at(n) * math.exp(random.normal(0, noise)) for n in counts]
    at = crossing(counts, efficiency, 0.9).ranks or float(counts[-1])
    return Outcome(
        runs=len(found.runs),
        error=found.error,
        covered=found.covers(),
        width=found.belief.width,
        effort=found.effort,
        seconds=seconds,
        sweep=at / truth.knee() - 1,
        kneedle=kneedle(counts, efficiency, truth),
    )


def linear_counts(truth: Curve) -> list[int]:
    """32 counts evenly up to the power of two above 1.2 knees."""
    most = max(SWEEP, 2 ** math.ceil(math.log2(1.2 * truth.knee())))
    return [most * (i + 1) // SWEEP for i in range(SWEEP)]


def kneedle(counts: list[int], efficiency: list[float], truth: Curve) -> float:
    """Relative error of Kneedle against N_AU90 or C / r, whichever is closer; nan without the package."""
    try:
        from kneed import KneeLocator
    except ImportError:
        return math.nan
    rate = np.array(counts) * np.array(efficiency)
    knee = KneeLocator(counts, rate, curve="concave", direction="increasing").knee
    if knee is None:
        return 1.0
    return min((knee / truth.knee() - 1, knee / truth.saturation - 1), key=abs)


def row(name: str, noise: float, outcomes: list[Outcome]) -> str:
    errors = np.abs([o.error for o in outcomes])
    runs = [o.runs for o in outcomes]
    sweep = np.abs([o.sweep for o in outcomes])
    other = np.abs([o.kneedle for o in outcomes])
    covered = np.mean([o.covered for o in outcomes])
    width, effort = (np.median([getattr(o, what) for o in outcomes]) for what in ("width", "effort"))
    return (
        f"{name:9} {100 * noise:4.1f} | {np.median(runs):4.1f} {np.quantile(runs, 0.9):4.0f} | "
        f"{_percents(errors, 2)} | {covered:5.2f} {100 * width:7.1f} | "
        f"{effort:7.1f} {1e3 * max(o.seconds for o in outcomes):5.0f} | "
        f"{_percents(sweep, 2)} | {_percents(other, 1)} {missed(name, noise, outcomes)}"
    ).rstrip()


def _percents(errors: np.ndarray, digits: int) -> str:
    return f"{100 * np.median(errors):5.{digits}f} {100 * np.quantile(errors, 0.9):5.{digits}f}"


def missed(name: str, noise: float, outcomes: list[Outcome]) -> str:
    """Which of the stated targets this row misses."""
    error = float(np.median(np.abs([o.error for o in outcomes])))
    most = 0.025 if noise > 0.01 or name == "usl" else 0.01
    said = []
    if error > most:
        said.append(f"error > {most:.1%}")
    if np.mean([o.covered for o in outcomes]) < 0.9:
        said.append("coverage < 0.90")
    limit = 20 if name in ("soft p=3", "usl") else 9
    if noise == 0.01 and np.median([o.runs for o in outcomes]) > limit:
        said.append(f"runs > {limit}")
    return "MISSED " + ", ".join(said) if said else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--searches", type=int, default=50, help="searches per row")
    parser.add_argument("--first", type=int, default=0, help="number of the first search: its seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--cost", choices=("run", "step"), default="run")
    options = parser.parse_args()
    print(HEAD)
    with ProcessPoolExecutor(options.jobs) as pool:
        for name in FORMS:
            for noise in NOISES:
                numbers = range(options.first, options.first + options.searches)
                jobs = [(name, noise, number) for number in numbers]
                outcomes = list(pool.map(partial(both, cost=options.cost), jobs, chunksize=2))
                print(row(name, noise, outcomes), flush=True)


if __name__ == "__main__":
    main()
