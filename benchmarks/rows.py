"""Memory and time of the step log against its rows, written and read through the record's own functions.

    python benchmarks/rows.py [--rows 100000 1000000 10000000] [--no-fit] [--folder DIR] [--out FILE]

Rows are made up: ranks of 5,000 steps, random seconds, two points. Each is put into spools of 64 ranks a
host, which each host writes as its part of the step log; then the commands that read results run, each in a
process of its own, whose largest resident memory is the kernel's (ru_maxrss). `fit` goes through all rows
twice; `report` of a run that was killed finds them in its spools.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from processes import become_feedrate, in_a_process, table_line

from emulator.analysis.here import here
from emulator.analysis.parts import Whole
from emulator.analysis.point import point_of
from emulator.config.workload import load_workload
from emulator.record.out import read_result, write_result
from emulator.record.result import new_result
from emulator.record.steps import (
    STEP,
    Spool,
    Steps,
    make_spool,
    parts_of,
    remove_spools,
    step_blocks,
    write_part,
)

STEPS, RANKS_A_HOST, POINTS = 5000, 64, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    parser.add_argument("--folder", type=Path, help="where OUT is made; default: the system's temporary one")
    parser.add_argument("--no-fit", action="store_true", help="no fit and no report of a killed run")
    parser.add_argument("--out", type=Path, help="the table as a Markdown file")
    given = parser.parse_args()
    head = (
        "rows", "a rank sums up", "hosts write, rows/s", "MB", "bytes a row", "are read, rows/s", "MB",
        "report, s", "MB", "fit, s", "MB", "report of killed, s", "MB",
    )  # fmt: skip
    lines = [table_line(*head), table_line(*["---"] * len(head))]
    print(lines[0], flush=True)
    for count in given.rows:
        with tempfile.TemporaryDirectory(dir=given.folder) as name:
            lines.append(table_line(f"{count:.0e}", *measured(Path(name), count, not given.no_fit)))
        print(lines[-1], flush=True)
    if given.out:
        given.out.write_text("\n".join(lines) + "\n")


def measured(out: Path, count: int, with_fit: bool) -> list[str]:
    ranks = max(1, count // STEPS // POINTS)
    steps = count // ranks // POINTS
    own, _ = in_a_process(lambda: sum_up(steps))
    writing = []
    hosts = range(-(-ranks // RANKS_A_HOST))
    for number in hosts:
        file = spool_of(out, number, ranks, steps)
        writing.append(in_a_process(lambda n=number, file=file: write_part(out, n, [file])))
        remove_spools(out)
    size = sum(file.stat().st_size for file in out.glob("steps*.parquet"))
    reading = in_a_process(lambda: sum(map(len, step_blocks(out))))
    write_result(out, result_of(ranks, steps))
    report = in_a_process(lambda: become_feedrate("report", out, "--html", out / "a.html"))
    made = read_result(out)
    fit = killed = (math.nan, math.nan)
    if with_fit:
        fit = in_a_process(lambda: become_feedrate("fit", out, "--out", out / "system.toml"))
    if with_fit:
        for file in parts_of(out):
            file.unlink()
        for number in hosts:
            spool_of(out, number, ranks, steps)
        write_result(out, replace(made, points=made.points[:-1], status="incomplete", reason="killed"))
        killed = in_a_process(lambda: become_feedrate("report", out, "--html", out / "a.html"))
    return [
        f"{own:.2f} s", f"{count / sum(seconds for seconds, _ in writing) / 1e6:.2f} M",
        f"{max(memory for _, memory in writing):.0f}", f"{size / count:.0f}",
        f"{count / reading[0] / 1e6:.2f} M", f"{reading[1]:.0f}",
        f"{report[0]:.1f}", f"{report[1]:.0f}",
        f"{fit[0]:.1f}", f"{fit[1]:.0f}", f"{killed[0]:.1f}", f"{killed[1]:.0f}",
    ]  # fmt: skip


def spool_of(out: Path, number: int, ranks: int, steps: int) -> Path:
    """Write the spool that the ranks of one host leave while they run."""
    on_it = range(number * RANKS_A_HOST, min(ranks, (number + 1) * RANKS_A_HOST))
    file = make_spool(out, number)
    for place, rank in enumerate(on_it):
        with Spool(file, place, len(on_it)) as spool:
            for point in range(POINTS):
                spool.append(rows_of(point, rank, steps))
    return file


def rows_of(point: int, rank: int, steps: int) -> Steps:
    """Steps of one rank: seconds have all their digits, as clocks give them."""
    random = np.random.default_rng([point, rank])
    rows = np.zeros(steps, STEP)
    rows["point"], rows["rank"], rows["step"], rows["samples"] = point, rank, np.arange(steps), 7
    rows["bytes"], rows["compute"] = random.normal(1e9, 2e8, steps).astype(np.int64), 0.636
    rows["wait"], rows["late"] = random.exponential(0.05, steps), random.exponential(1e-4, steps)
    ends = np.cumsum(rows["wait"] + rows["compute"])
    rows["begin"] = ends - rows["wait"] - rows["compute"]
    rows["arrived"] = rows["begin"] + rows["wait"]
    rows["requested"] = rows["arrived"] - random.exponential(0.5, steps)
    rows["got"], rows["woke"] = rows["arrived"] + rows["late"], ends + rows["late"]
    return rows


def sum_up(steps: int) -> None:
    """Sum up a rank's own rows as at the end of a point, but for the messages."""
    workload, rows = load_workload("unet3d-a100"), rows_of(0, 0, steps)
    point_of(workload, 10**6, 1, rows, here(rows, workload.training.sync), Whole())


def result_of(ranks: int, steps: int) -> object:
    workload = load_workload("unet3d-a100")
    rows = rows_of(0, 0, steps)
    one = point_of(workload, 10**9, 1, rows, here(rows, workload.training.sync))
    points = tuple(
        replace(one, ranks=ranks, samples=one.samples * ranks, bytes=one.bytes * ranks,
                samples_per_second=one.samples_per_second * ranks,
                bytes_per_second=one.bytes_per_second * ranks,
                ideal_samples_per_second=one.ideal_samples_per_second * ranks)
        for _ in range(POINTS)
    )  # fmt: skip
    made = new_result(
        "sweep", command=("feedrate",), workload=asdict(workload),
        dataset={"files": 10**9, "samples": 10**9, "bytes": 10**18},
        storage={"cache": "cold", "shaped_rate": None, "shaped_latency": 0.0}, loader="direct",
        environment={}, points=points,
    )  # fmt: skip
    return replace(made, status="complete", reason="")


if __name__ == "__main__":
    main()
