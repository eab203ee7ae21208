"""Leave one out: each count of a sweep, predicted from a fit to the others, beside two null models.

    python benchmarks/twin.py OUT... > results/twin.md

Rules, fixed before any row was looked at. For every count N of a sweep, `fit` sees all the other counts, and
`simulate` predicts N on the fitted system. The nulls see the same counts: *constant* is the mean efficiency
(throughput / ideal) of the others; *cap* is the largest throughput of the others or N's demand, the smaller.
Errors are of throughput. The interval covers a row when the measured efficiency is inside (to 0.1 points).
The twin is *no better than* a null whose median error is not larger than its own.
"""

import statistics
import sys
from functools import partial
from pathlib import Path

from emulator.errors import SpecError
from emulator.record.folder import read_result
from emulator.record.steps import read_steps
from emulator.satellites.systems.fit import fit, seen_in, workload_of
from emulator.satellites.systems.predict import efficiency_interval, on_paper, predict


def rows_of(out: Path) -> list[tuple[int, float, float, tuple[float, float], float, float]]:
    """(count, measured, twin, interval, constant, cap) of every count that is left out; efficiencies."""
    result = read_result(out)
    workload, seen = workload_of(result), seen_in(result, partial(read_steps, out))
    rows = []
    for count in sorted({one.ranks for one in seen}):
        others = [one for one in seen if one.ranks != count]
        left = [one for one in seen if one.ranks == count]
        found = fit([str(out)], workload, others)
        if found.refusal:
            print(f"{out.name} without {count}: refused, {found.refusal}", file=sys.stderr)
            continue
        simulation = on_paper(
            workload, found.system, count, files=int(result.dataset["samples"]), steps=len(left[0].size)
        )
        point = predict(simulation, count).point
        constant = statistics.mean(one.efficiency for one in others)
        most = max(one.efficiency * one.ranks for one in others)
        measured = statistics.mean(one.efficiency for one in left)
        interval = efficiency_interval(simulation, count, 0, point)
        rows.append((count, measured, point.x_ideal, interval, constant, min(1.0, most / count)))
    return rows


def main() -> int:
    title = "# The twin against counts that it has not seen\n"
    print(title + "\n" + __doc__.split("\n\n", 2)[2])
    inside, pooled = [], {"twin": [], "constant": [], "cap": []}
    for name in sys.argv[1:]:
        out = Path(name)
        print(f"## {out.name}\n")
        try:
            rows = rows_of(out)
        except SpecError as error:
            print(f"Refused: {error}\n", flush=True)
            continue
        print(f"`{' '.join(read_result(out).command)}`\n")
        print("| ranks | measured % | twin % | error % | 95 % interval | constant: error % | cap: error % |")
        print("|---|---|---|---|---|---|---|")
        errors = {"twin": [], "constant": [], "cap": []}
        for count, measured, twin, (low, high), constant, cap in rows:
            for kind, guess in (("twin", twin), ("constant", constant), ("cap", cap)):
                errors[kind].append(100 * (guess / measured - 1))
            covered = low - 1e-3 <= measured <= high + 1e-3
            inside.append(covered)
            print(
                f"| {count} | {100 * measured:.1f} | {100 * twin:.1f} | {errors['twin'][-1]:+.1f} | "
                f"{100 * low:.1f} to {100 * high:.1f}{'' if covered else ' (outside)'} | "
                f"{errors['constant'][-1]:+.1f} | {errors['cap'][-1]:+.1f} |"
            )
        print("\n" + summary(errors) + "\n", flush=True)
        for kind, values in errors.items():
            pooled[kind] += values
    print(f"## All\n\n{summary(pooled)} The interval covers {sum(inside)} of {len(inside)} rows.")
    return 0


def summary(errors: dict[str, list[float]]) -> str:
    """Median and worst of each, and whether the twin beats the nulls."""
    median = {kind: statistics.median(map(abs, values)) for kind, values in errors.items()}
    shown = "; ".join(
        f"{kind}: median {median[kind]:.1f} %, worst {max(map(abs, values)):.1f} %"
        for kind, values in errors.items()
    )
    beaten = [kind for kind in ("constant", "cap") if median["twin"] >= median[kind]]
    verdict = f"The twin is no better than: {', '.join(beaten)}." if beaten else "The twin beats both."
    return f"{shown}. {verdict}"


if __name__ == "__main__":
    raise SystemExit(main())
