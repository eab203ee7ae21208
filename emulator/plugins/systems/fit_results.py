"""Fit a system to folders of results, as `feedrate fit` does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from emulator.analysis.flags import invalid
from emulator.errors import Inconclusive, SpecError
from emulator.plugins.systems.fit import Fit, fit
from emulator.plugins.systems.fit_quality import LEAST, further_run, held_out, median_errors
from emulator.plugins.systems.seen import Seen, described, seen_in, workload_of
from emulator.plugins.systems.system import refuse_existing, write_system
from emulator.record.out import read_result
from emulator.record.result import RunResult
from emulator.record.steps import step_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class FitAnswer:
    """A fitted system, and the run to measure next."""

    fit: Fit
    advice: str
    """The further run that would narrow a parameter most; empty if none would, or if the fit is refused."""

    def write(self, path: Path, force: bool = False) -> None:
        """Write the system file.

        Raises SpecError: no model describes the runs, or the file exists without `force`; StorageError.
        """
        if self.fit.refusal:
            raise SpecError(
                f"{self.fit.refusal}; {path} was not written",
                "see the residuals above; repeat the counts that are off, or leave them out with --counts",
            )
        refuse_existing(path, force)
        write_system(path, self.fit.system)


def fit_results(
    results: Sequence[Path], counts: Sequence[int] | None = None, *, say: Callable[[str], None] | None = None
) -> FitAnswer:
    """Estimate a system from the results in these folders; None: from all of their process counts.

    `say` gets a line for each reason why runs are left out. A fit that describes nothing has a `refusal`.
    Raises SpecError: results of different workloads, or without these counts; Inconclusive: the page cache or
    the client was the limit of every run; StorageError; MissingError without numba.
    """
    workloads, seen = [], list[Seen]()
    for path in results:
        result = read_result(path)
        workloads.append(workload_of(result))
        _tell_left_out(path, result, say)
        found = seen_in(result, partial(step_blocks, path))
        seen += [count for count in found if counts is None or count.ranks in counts]
    workload = workloads[0]
    if any(other != workload for other in workloads):
        raise SpecError("the results are of different workloads", "fit each of them by itself")
    if not seen:
        wanted = ",".join(map(str, counts or ()))
        raise SpecError(f"no result has the process counts {wanted}", "see feedrate report OUT")
    fitted = fit([str(path) for path in results], workload, seen)
    if fitted.refusal:
        return FitAnswer(fit=fitted, advice="")
    if len(fitted.fitted.counts) >= LEAST:
        fitted = fitted.with_errors(median_errors(held_out(workload, seen)))
    return FitAnswer(fit=fitted, advice=further_run(workload, fitted))


def _tell_left_out(path: Path, result: RunResult, say: Callable[[str], None] | None) -> None:
    """Say which runs no system describes. Raises Inconclusive when there are no others."""
    points, used = result.points, described(result.points)
    reasons = Counter(
        "page-cache" if invalid(point) else "limited by the client" for point in points if point not in used
    )
    for why, runs in reasons.items():
        if say:
            say(f"{path}: left out: {runs} of {len(points)} runs ({why})")
    if not points or used:
        return
    if "page-cache" in reasons:
        raise Inconclusive(f"{path}: no run is left to fit", f"see feedrate report {path}")
    raise Inconclusive(
        f"{path}: the client was the limit of every run, so a fit would describe the client", "use more hosts"
    )
