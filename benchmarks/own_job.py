"""Is the replay of a recorded job as fast as the job? Three real trainings on a capped block device. As root.

    python benchmarks/own_job.py KIND FOLDER [PHASE...]     KIND: volumes, images, slices

Phases, in this order: up, alone, 0, 1, 2 (the rates), both, 0, 1, 2, table, down; without any, all of them.
The job is recorded alone, at the highest rate, and replayed with 1 and 2 processes; for `both` it is
recorded with two processes, and replayed with two. At each rate, in TURNS, the job runs before and after
its replays, every file out of the page cache first, in a random order of the turn's. Steps after the first
are compared, a replay with the mean of the two runs around it. The job's AU is the recorded step time
against the time that a step took: beyond 100 % the recorded one is longer. Phases of their own, after up:
`overhead` and, with two processes, `overhead-both`.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from own_job_blocks import ON, TRACED
from own_job_train import BATCH

ROOT = Path(__file__).resolve().parents[1]
DEVICE, TRAIN = ROOT / "tests/lab/device.sh", Path(__file__).with_name("own_job_train.py")
BLOCKS_OF = TRAIN.with_name("own_job_blocks.py")
STEPS = {"volumes": 60, "images": 90, "slices": 90}
RECORDED = {"volumes": 190, "images": 240, "slices": 190}
"""Steps of the recorded run, of each of two, too: reads are traced in the first hundred, the others are
timed. None is the last of an epoch, where workers have nothing left to do and leave cores to computing."""
RATES = {"volumes": (100, 24, 12), "images": (200, 40, 16), "slices": (300, 80, 30)}
"""MB/s: more than two processes need; less than two; less than one."""
TURNS = {"volumes": (3, 1, 1), "images": (3, 1, 1), "slices": (3, 2, 2)}
"""At the highest rate computing decides, and machines drift: it is recorded anew in each turn. How much of
one file the kernel reads ahead depends on the order in which its slices are read."""
LOADERS = ("torch", "direct")
PAIRS = 10
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
        run(DEVICE, "up", self.folder, "4G", 10**9)

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


def launcher(ranks: int) -> list[object]:
    torchrun = [Path(sys.executable).with_name("torchrun"), "--standalone", "--nproc-per-node", ranks]
    return [sys.executable] if ranks == 1 else torchrun


def record(device: Capped, kind: str, ranks: int) -> None:
    device.rate(RATES[kind][0])
    device.evict()
    data = device.mount / "replay"
    run(*device.within(
        *FEEDRATE, "record", "--out", device.folder / "job", "--force", "--traced-steps", 100, "--",
        *launcher(ranks), TRAIN, "train", kind, device.mount / "data", RECORDED[kind],
    ))  # fmt: skip
    if not data.exists():
        run(*FEEDRATE, "generate", data, "--recipe", device.folder / "job" / "recipe.toml")


def replay(device: Capped, kind: str, ranks: int, loader: str, seed: int) -> tuple[float, float, list[str]]:
    """(samples/s of all ranks, AU, names of its flags) of the replay."""
    out = device.folder / "out"
    run(*device.within(
        *FEEDRATE, "run", device.mount / "replay", "--workload", device.folder / "job" / "workload.toml",
        "-n", ranks, "--loader", loader, "--steps", STEPS[kind], "--out", out, "--force",
        "--set", f"training.shuffle_seed={seed}",
    ))  # fmt: skip
    (point,) = json.loads((out / "run.json").read_text())["points"]
    return point["samples_per_second"], point["au"], [flag["name"] for flag in point["flags"]]


def measure(device: Capped, kind: str, number: int, recorded: int, counts: tuple[int, ...]) -> None:
    rows: dict[int, list[dict[str, object]]] = {ranks: [] for ranks in counts}
    for turn in range(TURNS[kind][number]):
        if turn and not number:
            record(device, kind, recorded)
        step = json.loads((device.folder / "job" / "record.json").read_text())["step"]["seconds"]
        device.rate(RATES[kind][number])
        for ranks in counts:
            seed, jobs, replays = 10 * turn + 2 * number + ranks, [], {}
            for loader in ("job", *LOADERS, "job"):
                device.evict()
                if loader == "job":
                    jobs.append(real(device, kind, ranks, seed))
                else:
                    replays[loader] = replay(device, kind, ranks, loader, seed)
            speeds, took = zip(*jobs, strict=True)
            row = {"step": step, "jobs": speeds, "job_au": step / fmean(took)}
            for loader, (speed, au, flags) in replays.items():
                row |= {loader: speed / fmean(speeds) - 1, f"{loader}_au": au, f"{loader}_flags": flags}
            rows[ranks].append(row)
    with (device.folder / "rows.jsonl").open("a") as file:
        for ranks, turns in rows.items():
            facts = {"rate": RATES[kind][number], "ranks": ranks, "recorded": recorded}
            file.write(json.dumps({**facts, "turns": turns}) + "\n")


def middle(row: dict[str, Any], name: str) -> float:
    """Return the median of a row's turns."""
    return median(turn[name] for turn in row["turns"])


def table(device: Capped, kind: str) -> None:
    print(f"{kind}: batch size {BATCH[kind]}; medians of turns")
    print("MB/s  processes (recorded)  step, ms        job, samples/s    torch (turns)    direct (turns)")
    for row in map(json.loads, (device.folder / "rows.jsonl").read_text().splitlines()):
        steps = [1e3 * turn["step"] for turn in row["turns"]]
        jobs = [speed for turn in row["turns"] for speed in turn["jobs"]]
        words = [
            f"{row['rate']:4d}  {row['ranks']:9d} ({row['recorded']})",
            f"{min(steps):6.1f} to {max(steps):6.1f}  {min(jobs):6.1f} to {max(jobs):6.1f}",
        ]
        for loader in LOADERS:
            each = " ".join(f"{turn[loader]:+.1%}" for turn in row["turns"])
            words.append(f"{middle(row, loader):+.1%} ({each})")
        aus = " ".join(f"{middle(row, f'{one}_au'):.1%}" for one in ("job", *LOADERS))
        flags = {name for turn in row["turns"] for name in turn["torch_flags"]}
        print("   ".join([*words, f"AU {aus}", *sorted(flags)]))


def overhead(device: Capped, kind: str, ranks: int) -> None:
    """Recorded against not, everything in memory: blocks of steps of the same run, and runs in turns."""
    device.rate(10_000)
    group = Path("/sys/fs/cgroup/cpuacct") / device.folder.name
    group.mkdir(exist_ok=True)
    job = [*launcher(ranks), BLOCKS_OF, kind, device.mount / "data", group]
    recorded = [
        *FEEDRATE, "record", "--out", device.folder / "overhead", "--force", "--warmup", 0, "--traced-steps",
        TRACED, "--no-check", "--", *job,
    ]  # fmt: skip
    turns = []
    for turn in range(PAIRS + 1):
        said = {}
        for which in ("on", "off") if turn % 2 else ("off", "on"):
            ended = run(DEVICE, "in", group, *(recorded if which == "on" else job))
            said[which] = json.loads(ended.splitlines()[-1])
        if turn:  # the first reads what is not in memory yet
            turns.append(said)
            with (device.folder / "overhead.jsonl").open("a") as file:
                file.write(json.dumps({"ranks": ranks, **said}) + "\n")
    group.rmdir()
    overhead_table(kind, ranks, turns)


def overhead_table(kind: str, ranks: int, turns: list[dict[str, Any]]) -> None:
    found: dict[str, list[NDArray[np.float64]]] = {}  # wall clock and CPU, recorded / not
    for said in turns:
        steps, plain = (
            np.diff(np.array(said[which])[:, 1:], axis=0) / np.diff(np.array(said[which])[:, :1], axis=0)
            for which in ("on", "off")
        )
        on, off = (steps[2:][np.array(ON) == one].reshape(-1, 2, 2).mean(axis=1) for one in (True, False))
        for name, ratio in {
            "only timed, blocks of one run": on / off,
            "only timed, runs in turns": on.mean(axis=0)[None] / plain[2:].mean(axis=0),
            "traced, blocks of one run": steps[:1] / off.mean(axis=0),
            "traced, runs in turns": steps[:1] / plain[:1],
        }.items():
            found.setdefault(name, []).extend(ratio)
    wall, cpu = 1e3 * off.mean(axis=0)
    print(f"{kind}, processes: {ranks}; a step {wall:.1f} ms, {cpu:.1f} ms of CPU")
    for name, ratios in found.items():
        for of, each in zip(("time", "CPU"), np.sort(np.array(ratios), axis=0).T - 1, strict=True):
            edge = int(len(each) / 2 - 0.98 * math.sqrt(len(each)))  # the sign test's 95 %
            interval = f"{each[edge]:+.2%} to {each[-1 - edge]:+.2%}"
            print(f"{name}, {of}: {median(each):+.2%} ({interval}), {len(each)}")


def main() -> None:
    kind, device = sys.argv[1], Capped(Path(sys.argv[2]))
    for phase in sys.argv[3:] or ("up", "alone", "0", "1", "2", "both", "0", "1", "2", "table", "down"):
        if phase == "up":
            device.up()
            run(sys.executable, TRAIN, "make", kind, device.mount / "data")
        elif phase in ("alone", "both"):
            record(device, kind, 1 + (phase == "both"))
        elif phase == "table":
            table(device, kind)
        elif phase.startswith("overhead"):
            overhead(device, kind, 1 + phase.endswith("both"))
        elif phase == "down":
            run(DEVICE, "down", device.folder)
        else:
            seen = json.loads((device.folder / "job" / "record.json").read_text())
            recorded = len({loader["rank"] for loader in seen["loaders"]})
            measure(device, kind, int(phase), recorded, counts=(1, 2)[recorded - 1 :])


if __name__ == "__main__":
    main()
