"""Fit a system to folders of results, and describe the fit, for `feedrate fit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from emulator.analysis.evidence import left_out
from emulator.config.workload import stored_workload
from emulator.errors import Inconclusive, SpecError
from emulator.plugins.systems.fit import Fit, fit
from emulator.plugins.systems.fit_quality import LEAST, further_run, held_out, median_errors
from emulator.plugins.systems.seen import Seen, described, seen_in
from emulator.plugins.systems.system import Fitted, write_system
from emulator.record.out import read_result
from emulator.record.result import RunResult
from emulator.record.steps import step_blocks
from emulator.units import show_rate, show_seconds

_SHOWN = {
    "bandwidth": ("bandwidth", show_rate),
    "nic": ("bandwidth of a host", show_rate),
    "latency": ("latency", show_seconds),
    "step_cost": ("cost of each step", show_seconds),
}
"""Displayed name, and format of the value, by parameter."""
_OWN = ("latency", "step_cost")
"""Parameters of a single rank, which may be 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitAnswer:
    """A fitted system, and the next run to measure."""

    fit: Fit
    advice: str
    """The additional run that would narrow a parameter most; empty if none would, or the fit is refused."""

    def write(self, path: Path) -> None:
        """Write the system file. Raises SpecError if no model describes the runs, StorageError."""
        if self.fit.refusal:
            raise SpecError(
                f"{self.fit.refusal}; {path} was not written",
                "see the residuals above; repeat the counts that are off, or leave them out with --counts",
            )
        write_system(path, self.fit.system)


def fit_results(
    results: Sequence[Path], counts: Sequence[int] | None = None, *, say: Callable[[str], None] | None = None
) -> FitAnswer:
    """Estimate a system from the results in these folders, from all process counts if `counts` is None.

    `say` prints a line for each reason why runs are left out. A fit that describes nothing has a `refusal`.
    Raises SpecError: results of different workloads, or without these counts; Inconclusive: the page cache or
    the client was the limit of every run; StorageError; MissingError without numba.
    """
    workloads, seen = [], list[Seen]()
    for path in results:
        result = read_result(path)
        workloads.append(stored_workload(result.workload))
        _report_left_out(path, result, say)
        measured = seen_in(result, partial(step_blocks, path))
        seen += [count for count in measured if counts is None or count.ranks in counts]
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


def _report_left_out(path: Path, result: RunResult, say: Callable[[str], None] | None) -> None:
    """Report the runs that no system describes. Raises Inconclusive if there are no others."""
    used = described(result.points)
    left = left_out(result.points, used)
    if say:
        for sentence in left:
            say(f"{path}: left out: {sentence}")
    if left and not used:
        raise Inconclusive(f"{path}: no run is left to fit: {', '.join(left)}", f"see feedrate report {path}")


def fit_lines(found: Fit) -> list[str]:
    """Return lines on the counts, the parameters and their intervals."""
    lines = ["ranks   measured        fitted        off       95 % interval of a run"]
    rows = zip(found.fitted.seen, found.played, found.intervals, strict=True)
    for one, played, (low, high) in sorted(rows, key=lambda row: row[0].ranks):
        off = 100 * (played / one.rate - 1)
        lines.append(
            f"{one.ranks:5}   {show_rate(one.rate):12}    {show_rate(played):12} {off:+6.1f} %  "
            f"{show_rate(low)} to {show_rate(high)}"
        )
    return [*lines, *_parameters(found), *found.notes, *_seen(found.fitted)]


def _parameters(found: Fit) -> Iterator[str]:
    fitted, chosen = found.fitted, found.system.parameters
    if not fitted.identified:
        yield (
            f"bandwidth: not identified. {found.unlimited}; its bandwidth is at least "
            f"{show_rate(fitted.at_least)} (95 %). Measure a larger count."
        )
    for name, (what, show) in _SHOWN.items():
        if name in fitted.interval:
            low, high = map(show, fitted.interval[name])
            yield f"{what}: {show(getattr(chosen, name))}, 95 % interval {low} to {high}"
        elif name in _OWN:
            yield f"{what}: none is visible"
    if start := found.system.clients.start:
        yield f"start-up: {show_seconds(start)} before a rank's first read"


def _seen(fitted: Fitted) -> Iterator[str]:
    yield (
        f"run-to-run variation: {100 * fitted.deviation:.1f} % ({fitted.freedom} degrees of freedom), from "
        f"residuals, repeats and drift"
    )
    if fitted.standing:
        yield fitted.standing
    counts, hosts = (", ".join(f"{one:,}" for one in seen) for seen in (fitted.counts, fitted.hosts))
    yield (f"measured: counts {counts}; on {hosts} host(s). simulate flags other points as extrapolated.")
