"""Is the replay of a recorded job as fast as the job? On a block device of a known rate and latency, as root.

    python benchmarks/own_job.py KIND FOLDER [--processes N] [--turns N] [--only CONDITION...]

The kinds of jobs are in own_job_kinds.py; $JOB_PYTHON runs them. The job is recorded on a device without
limits, out of the page cache. Then the job and its replays with torch and direct run in turns: in memory, on
a device that gives 40 % of the bytes/s that the job took from one without limits, and with a latency of 3 ms.
Everything but `memory` begins out of the page cache. A line of stdout is a condition.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from own_job_kinds import rate_of
from processes import evict, read_in

from emulator.analysis.flags import unlike_job
from emulator.config.workload import load_workload
from emulator.record.out import read_result
from emulator.record.steps import read_steps

BENCHMARKS = Path(__file__).parent
LAB = BENCHMARKS.parent / "tests/lab"
JOB = BENCHMARKS / "own_job_kinds.py"
PYTHON = os.environ.get("JOB_PYTHON", sys.executable)
FEEDRATE = (sys.executable, "-m", "emulator")
STEPS, LATE = 160, 0.003
RECORDED = {"parquet": 120, "turn": 180}
"""Steps of the recorded run, where 140, forty of them traced, are too few or too many."""
CONDITIONS = ("memory", "40 %", "3 ms")


def run(*words: object) -> str:
    command = [str(word) for word in words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    sys.stderr.write(done.stderr)
    return done.stdout


def launcher(processes: int) -> list[object]:
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes]
    return [PYTHON] if processes == 1 else torchrun


class Medium:
    """A device under FOLDER/mnt whose rate and latency can be changed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mount = folder, folder / "mnt"

    def up(self) -> None:
        run(LAB / "device.sh", "up", self.folder, "3G", 0, "shared")

    def limit(self, rate: float, late: float) -> None:
        """Mount the same data with another rate, in bytes/s, and latency, in seconds; 0 is no limit."""
        run(LAB / "device.sh", "again", self.folder, int(rate), late)

    def bytes_read(self) -> int:
        loop = Path(run("findmnt", "-no", "SOURCE", self.mount).strip()).name
        return 512 * int((Path("/sys/block") / loop / "stat").read_text().split()[2])

    def cache(self, warm: bool) -> None:
        """Read every file, or remove all from the page cache."""
        os.sync()
        (read_in if warm else evict)(path for path in self.mount.rglob("*") if path.is_file())


class Job:
    """A kind of job with its data, as so many processes."""

    def __init__(self, kind: str, medium: Medium, processes: int) -> None:
        self.kind, self.medium, self.processes = kind, medium, processes
        self.data, self.out = medium.mount / "data", medium.folder / "job"

    def words(self, steps: int) -> list[object]:
        return [*launcher(self.processes), JOB, "train", self.kind, self.data, steps]

    def alone(self) -> dict[str, float]:
        """Return the job's own line: the rate of a process in samples/s, and the seconds of its steps."""
        found: dict[str, float] = json.loads(run(*self.words(STEPS)).splitlines()[-1])
        return {**found, "rate": self.processes * found["rate"]}

    def record(self) -> str | None:
        """Record the job, cold, and make data for its replay; or return why there is no workload."""
        self.medium.cache(warm=False)
        words = [*FEEDRATE, "record", "--out", self.out, "--force", "--traced-steps", 40, "--",
                 *self.words(RECORDED.get(self.kind, 140))]  # fmt: skip
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
        sys.stderr.write(done.stderr)
        if not (self.out / "workload.toml").exists():
            return done.stderr.strip().splitlines()[-1]
        run(*FEEDRATE, "generate", self.medium.mount / "replay", "--recipe", self.out / "recipe.toml")
        return None

    def replay(self, loader: str, cache: str) -> tuple[float, list[str]]:
        """Return samples/s of all ranks and the names of the flags."""
        out = self.medium.folder / "out"
        run(*FEEDRATE, "run", self.medium.mount / "replay", "--workload", self.out / "workload.toml", "-n",
            self.processes, "--loader", loader, "--steps", STEPS, "--out", out, "--force", "--cache", cache,
        )  # fmt: skip
        rows = read_steps(out)
        workload = load_workload(str(self.out / "workload.toml"))
        samples = workload.loader.batch_size * workload.job.samples
        own = rows[rows["rank"] == 0]
        begun = np.sort(own["begin"] + own["wait"])
        rate = self.processes * rate_of(begun, samples)
        flags = [*read_result(out).points[0].flags, *filter(None, [unlike_job(workload)])]
        return rate, [flag.name for flag in flags]


def measure(job: Job, turns: int, only: list[str]) -> None:
    medium = job.medium
    refused = job.record()
    medium.cache(warm=False)
    before = medium.bytes_read()
    demand = job.alone()["seconds"]
    demand = (medium.bytes_read() - before) / demand
    for condition in only:
        rate = demand * {"40 %": 0.4}.get(condition, 0)
        medium.limit(rate, LATE if condition == "3 ms" else 0)
        found: dict[str, list[float]] = {}
        flags: set[str] = set()
        for turn in range(turns):
            for how in (
                ("job",) if refused else (("torch", "job", "direct"), ("direct", "job", "torch"))[turn % 2]
            ):
                medium.cache(warm=condition == "memory")
                if how == "job":
                    found.setdefault(how, []).append(job.alone()["rate"])
                else:
                    replayed, seen = job.replay(how, "warm" if condition == "memory" else "cold")
                    found.setdefault(how, []).append(replayed)
                    flags |= set(seen)
        told: dict[str, Any] = {"kind": job.kind, "processes": job.processes, "condition": condition}
        told |= {"MB/s": round(rate / 1e6, 1), "job": [round(one, 1) for one in found["job"]]}
        for how in ("torch", "direct"):
            told[how] = [round(one / median(found["job"]) - 1, 4) for one in found.get(how, [])]
        told |= {"flags": sorted(flags), "refused": refused, "load": os.getloadavg()[0]}
        if not refused and (checked := load_workload(str(job.out / "workload.toml")).job.replay):
            told["check"] = round(checked.difference, 4)
            told["trusted"] = not checked.distrusted
        print(json.dumps(told), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=CONDITIONS, choices=CONDITIONS)
    asked = parser.parse_args()
    job = Job(asked.kind, Medium(asked.folder), asked.processes)
    job.medium.up()
    try:
        run(PYTHON, JOB, "make", asked.kind, job.data)
        measure(job, asked.turns, asked.only)
    finally:
        subprocess.run([LAB / "device.sh", "down", asked.folder], check=True)


if __name__ == "__main__":
    main()
