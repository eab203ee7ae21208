"""A sweep in virtual time: points with intervals, and the knee, in the format of a measured result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from emulator.analysis.flags import short_run
from emulator.analysis.parts import Floats
from emulator.config.workload import Workload
from emulator.dataset.manifest import read_manifest
from emulator.plugins.systems.predict import LOGGED_RANKS, Simulation, forecast, on_paper
from emulator.plugins.systems.sizing import feeds
from emulator.plugins.systems.system import Fitted, System
from emulator.record.machine import describe_machine
from emulator.record.out import ResultFolder, check_out
from emulator.record.result import Flag, RunResult, new_result
from emulator.record.steps import Steps

STEPS = 100


def simulate(
    workload: Workload,
    system: System,
    counts: Sequence[int],
    out: Path,
    *,
    dataset: Path | None = None,
    steps: int | None = None,
    command: tuple[str, ...] = (),
    label: str = "",
    force: bool = False,
    say: Callable[[str], None] | None = None,
) -> tuple[RunResult, Steps]:
    """Predict `counts` of `workload` on `system`, write OUT, and return the result and its logged steps.

    Samples have the sizes of `dataset`; without one, sizes are drawn for as many samples as are read. `say`
    prints a line for each count.

    Raises DatasetError for too few samples or a dataset that cannot be read, SpecError if OUT has files,
    StorageError, MissingError.
    """
    check_out(out, force)
    steps = steps or STEPS
    if dataset is None:
        simulation = on_paper(workload, system, max(counts), steps=steps)
    else:
        manifest = read_manifest(dataset)
        each = manifest.samples_per_file
        sizes = (manifest.sizes[:].astype("float64") / each).repeat(each)
        simulation = Simulation(
            workload=workload, system=system, sizes=sizes, samples=len(sizes), steps=steps
        )
    points, rows = [], []
    for number, ranks in enumerate(counts):
        predicted = forecast(simulation, ranks, number)
        point = predicted.point
        flags = _fit_flags(ranks, system.clients.hosts, system.fit) if system.fit else []
        if short := short_run(point, workload):
            flags.append(short)
        points.append(replace(point, flags=tuple(flags)))
        rows.append(predicted.steps)
        if say:
            low, high = (100 * share for share in predicted.interval)
            say(
                f"  {ranks:,} ranks: {point.samples_per_second:.4g} samples/s, "
                f"{point.bytes_per_second / 1e9:.4g} GB/s, {100 * point.x_ideal:.1f} % of ideal "
                f"(95 % interval {low:.1f} to {high:.1f})"
            )
    if say:
        say("  other counts, for the knee of the system")  # up to 100,000 ranks, which may take half a minute
    samples = simulation.samples
    job = with_sample_sizes(workload, simulation.sizes) if dataset else workload
    facts = {"files": samples, "bytes": round(samples * float(simulation.sizes.mean()))}
    result = new_result(
        "simulated",
        command=command,
        label=label,
        workload=asdict(workload),
        dataset=facts if dataset is None else {**facts, "path": str(dataset)},
        storage={"cache": "cold", "shaped_rate": None, "shaped_latency": 0.0, "system": asdict(system)},
        loader="simulated",
        environment=describe_machine(),
        points=tuple(points),
        knee=feeds(job, system, over=simulation if dataset else None).knee,
        flags=tuple(_result_flags(max(counts), system.fit)),
    )
    kept = np.concatenate(rows)
    return ResultFolder.create(out, result, force=force).complete(kept), kept


def with_sample_sizes(workload: Workload, sizes: Floats) -> Workload:
    """Return `workload` with the mean and deviation of the given sample sizes."""
    mean, deviation = float(sizes.mean()), float(sizes.std())
    sample = replace(workload.sample, bytes_mean=round(mean), bytes_sd=round(deviation))
    return replace(workload, sample=sample)


def _result_flags(most: int, fit: Fitted | None) -> list[Flag]:
    """Return flags of the whole result; `most` is its largest count."""
    flags = []
    if most > LOGGED_RANKS:
        sentence = (
            f"The step log has at most {LOGGED_RANKS:,} ranks of a point, evenly spread; the figures of "
            f"the points cover all ranks."
        )
        flags.append(Flag(name="step-log", value=LOGGED_RANKS, threshold=most, sentence=sentence))
    if fit and fit.no_better:
        error, *nulls = fit.held_out
        flags.append(Flag(name="no-better", value=error, threshold=min(nulls), sentence=fit.standing))
    return flags


def _fit_flags(ranks: int, hosts: int | None, fit: Fitted) -> list[Flag]:
    """Return flags of a point outside of the measured counts, or of a fit without a limit."""
    flags = []
    low, high = fit.counts[0], fit.counts[-1]
    if not low <= ranks <= high:
        sentence = f"extrapolated: the system was fitted to counts from {low:,} to {high:,}"
        edge = high if ranks > high else low
        flags.append(Flag(name="extrapolated", value=ranks, threshold=edge, sentence=sentence))
    if hosts is not None and hosts > fit.hosts[-1]:
        sentence = (
            f"extrapolated: the system was fitted on at most {fit.hosts[-1]} host(s), which does not show "
            f"whether its limit grows with the hosts"
        )
        flags.append(Flag(name="more-hosts", value=hosts, threshold=fit.hosts[-1], sentence=sentence))
    if not fit.identified:
        sentence = f"no limit was visible up to {high:,}: the bandwidth and this point are lower bounds"
        flags.append(Flag(name="lower-bound", value=ranks, threshold=high, sentence=sentence))
    return flags
