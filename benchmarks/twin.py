"""Leave one out: each count of a sweep, predicted from a fit to the others, beside two null models.

    python benchmarks/twin.py OUT... > results/twin.md

These rules were fixed before any row was looked at. For every count N of a sweep, `fit` sees all other
counts, and `simulate` predicts N on the fitted system. The null models see the same counts: *constant* is the
mean efficiency (throughput / ideal) of the others; *cap* is the smaller of the others' highest throughput and
N's demand. Errors are of throughput. The interval covers a row if the measured efficiency is inside (to 0.1
points). The twin is *no better than* a null whose median error is at most its own.
"""

import statistics
import sys
from functools import partial
from pathlib import Path

from emulator.config.workload import stored_workload
from emulator.errors import SpecError
from emulator.plugins.systems.fit import fit
from emulator.plugins.systems.fit_quality import HeldOut, held_out
from emulator.plugins.systems.seen import seen_in
from emulator.record.out import read_result
from emulator.record.steps import step_blocks

KINDS = ("twin", "constant", "cap")


def rows_of(out: Path) -> list[HeldOut]:
    """Every count that is left out; of a fit that is refused, none. Prints what the fit says."""
    result = read_result(out)
    workload, seen = stored_workload(result.workload), seen_in(result, partial(step_blocks, out))
    found = fit([str(out)], workload, seen)
    if found.refusal:
        raise SpecError(found.refusal)
    if found.unlimited and not found.fitted.identified:
        print(f"Without a limit: {found.unlimited}.\n")
    return held_out(workload, seen)


def main() -> int:
    title = "# The twin against counts that it has not seen\n"
    print(title + "\n" + __doc__.split("\n\n", 2)[2])
    inside, pooled = 0, []
    for name in sys.argv[1:]:
        out = Path(name)
        print(f"## {out.name}\n\n`{' '.join(read_result(out).command)}`\n")
        try:
            rows = rows_of(out)
        except SpecError as error:
            print(f"Refused: {error}\n", flush=True)
            continue
        print("| ranks | measured % | twin % | error % | 95 % interval | constant: error % | cap: error % |")
        print("|---|---|---|---|---|---|---|")
        covered = 0
        for row in rows:
            low, high = row.interval
            within = low - 1e-3 <= row.measured <= high + 1e-3
            covered += within
            twin, constant, cap = (f"{100 * error:+.1f}" for error in row.errors)
            print(
                f"| {row.ranks} | {100 * row.measured:.1f} | {100 * row.simulated:.1f} | {twin} | "
                f"{100 * low:.1f} to {100 * high:.1f}{'' if within else ' (outside)'} | {constant} | {cap} |"
            )
        pooled += rows
        inside += covered
        print(
            f"\n{summary(errors_of(rows))} The interval covers {covered} of {len(rows)} rows.\n", flush=True
        )
    print(f"## All\n\n{summary(errors_of(pooled))} The interval covers {inside} of {len(pooled)} rows.")
    return 0


def errors_of(rows: list[HeldOut]) -> dict[str, list[float]]:
    """Errors of each kind, in % of the throughput."""
    return {kind: [100 * row.errors[number] for row in rows] for number, kind in enumerate(KINDS)}


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
