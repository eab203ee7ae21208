"""Is the replay of a recorded job as fast as the job? Three real trainings on a capped block device. As root.

    python benchmarks/own_job.py KIND FOLDER [PHASE...]     KIND: volumes, images, slices

Phases, in this order: up, record, 0, 1, 2 (the rates), both, table, down; without any, all of them. The job
is recorded once, alone, at the highest rate, and replayed with 1 and 2 processes; for `both` again, with two
processes, and replayed with two. At each rate the job runs before and after its replays, every file out of
the page cache first, in so many random orders as ORDERS says. Steps after the first are compared. The job's
AU is the recorded step time against the time that a step took: beyond 100 % the recorded one is longer. A
phase of its own, after up: `overhead`, of recording steps that nobody traces, everything in memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean, median

from own_job_train import BATCH

ROOT = Path(__file__).resolve().parents[1]
DEVICE, TRAIN = ROOT / "tests/lab/device.sh", Path(__file__).with_name("own_job_train.py")
STEPS = {"volumes": 60, "images": 90, "slices": 90}
RECORDED = {"volumes": 190, "images": 240, "slices": 190}
"""Steps of the recorded run: reads are traced in the first hundred, the others are timed."""
RATES = {"volumes": (100, 24, 12), "images": (200, 40, 16), "slices": (300, 80, 30)}
"""MB/s: more than two processes need; less than two; less than one."""
ORDERS = {"volumes": 1, "images": 1, "slices": 2}
"""How much of one file the kernel reads ahead depends on the order in which its slices are read."""
PAIRS = 7
PORT = 29511
ENV = {
    **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}  # fmt: skip


def run(*words: object, **more: str) -> str:
    command = [str(word) for word in words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**ENV, **more})
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    sys.stderr.write(done.stderr)
    return done.stdout


class Capped:
    """A device whose rate can be changed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mount = folder, folder / "mnt"
        self.group = f"/sys/fs/cgroup/blkio/feedrate-{folder.name}"

    def up(self) -> None:
        self.folder.mkdir(parents=True)
        run(DEVICE, "up", self.folder, "2G", 10**9)

    def rate(self, megabytes: int) -> None:
        path = Path(self.group) / "blkio.throttle.read_bps_device"
        device = path.read_text().split()[0]
        path.write_text(f"{device} {megabytes * 10**6}")

    def within(self, *words: object) -> list[str]:
        return [str(DEVICE), "in", self.group, *map(str, words)]

    def evict(self) -> None:
        os.sync()
        for path in self.mount.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def real(device: Capped, kind: str, ranks: int, seed: int) -> tuple[float, float]:
    """(samples/s of all ranks, seconds a step) of the job itself."""
    words = device.within(sys.executable, TRAIN, "train", kind, device.mount / "data", STEPS[kind])
    places = [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(PORT + seed),
        }
        for rank in range(ranks)
    ]
    started = [
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**ENV, "SEED": str(seed), **place})
        for place in places
    ]
    found = [json.loads(one.communicate()[0].splitlines()[-1]) for one in started]
    seconds = max(one["seconds"] for one in found)
    return sum(one["samples"] for one in found) / seconds, seconds / (STEPS[kind] - 1)


FEEDRATE = (sys.executable, "-m", "emulator")


def record(device: Capped, kind: str, ranks: int) -> None:
    launcher = [Path(sys.executable).with_name("torchrun"), "--standalone", "--nproc-per-node", ranks]
    device.rate(RATES[kind][0])
    device.evict()
    run(*device.within(
        *FEEDRATE, "record", "--out", device.folder / "job", "--force", "--traced-steps", 100 // ranks, "--",
        *([sys.executable] if ranks == 1 else launcher), TRAIN, "train", kind, device.mount / "data",
        RECORDED[kind],
    ))  # fmt: skip
    recipe = device.folder / "job" / "recipe.toml"
    run(*FEEDRATE, "generate", device.mount / "replay", "--recipe", recipe, "--force")


def replay(device: Capped, kind: str, ranks: int, loader: str, seed: int) -> tuple[float, float, list[str]]:
    """(samples/s of all ranks, AU, names of its flags) of the replay."""
    device.evict()
    out = device.folder / "out"
    run(*device.within(
        *FEEDRATE, "run", device.mount / "replay", "--workload", device.folder / "job" / "workload.toml",
        "-n", ranks, "--loader", loader, "--steps", STEPS[kind], "--out", out, "--force",
        "--set", f"training.shuffle_seed={seed}",
    ))  # fmt: skip
    (point,) = json.loads((out / "run.json").read_text())["points"]
    return point["samples_per_second"], point["au"], [flag["name"] for flag in point["flags"]]


def measure(device: Capped, kind: str, number: int, recorded: int, counts: tuple[int, ...]) -> None:
    step = json.loads((device.folder / "job" / "record.json").read_text())["step"]["seconds"]
    rate = RATES[kind][number]
    device.rate(rate)
    for ranks in counts:
        jobs, replays = [], {"torch": [], "direct": []}
        for order in range(ORDERS[kind]):
            seed = 10 * order + 2 * number + ranks
            for loader in ("job", "torch", "direct", "job"):
                if loader == "job":
                    device.evict()
                    jobs.append(real(device, kind, ranks, seed))
                else:
                    replays[loader].append(replay(device, kind, ranks, loader, seed))
        row = {"rate": rate, "ranks": ranks, "recorded": recorded, "step": step}
        row["jobs"] = [speed for speed, _ in jobs]
        row["job"], row["job_au"] = fmean(row["jobs"]), step / fmean(took for _, took in jobs)
        for loader, found in replays.items():
            speeds, aus, flags = zip(*found, strict=True)
            row[f"{loader}s"], row[loader], row[f"{loader}_au"] = speeds, fmean(speeds), fmean(aus)
            row[f"{loader}_flags"] = sorted({name for names in flags for name in names})
        with (device.folder / "rows.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")


def table(device: Capped, kind: str) -> None:
    rows = [json.loads(line) for line in (device.folder / "rows.jsonl").read_text().splitlines()]
    print(f"{kind}: step time {1e3 * rows[0]['step']:.1f} ms, batch size {BATCH[kind]}")
    print("MB/s  processes (recorded)  job, samples/s    torch    direct   job AU   torch  direct (points)")
    for row in rows:
        off = [100 * (row[one] / row["job"] - 1) for one in ("torch", "direct")]
        au = [100 * (row[f"{one}_au"] - row["job_au"]) for one in ("torch", "direct")]
        job_au = 100 * row["job_au"]
        print(
            f"{row['rate']:4d}  {row['ranks']:9d} ({row['recorded']})         "
            f"{min(row['jobs']):6.1f} to {max(row['jobs']):6.1f}"
            f"  {off[0]:+5.1f} %  {off[1]:+5.1f} %   {job_au:5.1f} %  {au[0]:+5.1f}  {au[1]:+5.1f}"
            f"  {' '.join(row['torch_flags'])}"
        )


def overhead(device: Capped, kind: str) -> None:
    """A late step of the job, recorded against not, in turns, after a run of each that does not count."""
    device.rate(10_000)
    job = [sys.executable, TRAIN, "train", kind, device.mount / "data", 120]
    recorded = [
        *FEEDRATE, "record", "--out", device.folder / "overhead", "--force", "--traced-steps", 20, "--", *job,
    ]  # fmt: skip
    more = []
    for pair in range(PAIRS + 1):
        took = {}
        for which in (True, False) if pair % 2 else (False, True):
            took[which] = json.loads(run(*(recorded if which else job)).splitlines()[-1])["late_step"]
        if pair:
            more.append(100 * (took[True] / took[False] - 1))
            print(f"recorded {1e3 * took[True]:.1f} ms, not {1e3 * took[False]:.1f} ms: {more[-1]:+.1f} %")
    print(f"{kind}: {median(more):+.1f} % ({min(more):+.1f} to {max(more):+.1f})")


def main() -> None:
    kind, device = sys.argv[1], Capped(Path(sys.argv[2]))
    for phase in sys.argv[3:] or ("up", "record", "0", "1", "2", "both", "table", "down"):
        if phase == "up":
            device.up()
            run(sys.executable, TRAIN, "make", kind, device.mount / "data")
        elif phase == "record":
            record(device, kind, 1)
        elif phase == "both":
            record(device, kind, 2)
            for number in range(len(RATES[kind])):
                measure(device, kind, number, recorded=2, counts=(2,))
        elif phase == "table":
            table(device, kind)
        elif phase == "overhead":
            overhead(device, kind)
        elif phase == "down":
            run(DEVICE, "down", device.folder)
        else:
            measure(device, kind, int(phase), recorded=1, counts=(1, 2))


if __name__ == "__main__":
    main()
