"""Compares known limits of real runs with those that feedrate names.

    python benchmarks/causes.py [--only WORD] [--log FILE] [--repeats 3] [--table results/causes.md]

Needs root, cgroup v1, stress-ng, and a machine whose others do nothing: runs, and what disturbs them, are in
cgroups that outweigh the rest of it a hundred times. Each run is a line of JSON in FILE; those that are there
are not run again, so that it can be interrupted. `--table` writes the confusion matrix of FILE.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import typer
from processes import AS_ROOT, evict, feedrate, read_in

from emulator.record.out import read_result
from emulator.record.result import CLIENT as CLIENT_KINDS

ROOT = Path(__file__).parents[1]
LAB = ROOT / "tests" / "lab"

CPU = Path("/sys/fs/cgroup/cpu")
GROUP = CPU / "feedrate-causes"
FOLDER = Path("/tmp/feedrate-causes")
DATA = FOLDER / "data"
ENVIRONMENT = {**os.environ, **AS_ROOT}

Trouble = Callable[["Running"], None]


@dataclass(frozen=True)
class Running:
    """A run that has been started."""

    process: subprocess.Popen[str]
    stack: ExitStack
    """Processes that end with it."""

    def ranks(self) -> list[psutil.Process]:
        """Its ranks, in order, once all of them are there."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        ranks = [child for child in family if child.name().startswith("feedrate-")]
        return sorted(ranks, key=lambda rank: int(rank.name().partition("-")[2]))


@dataclass(frozen=True)
class Case:
    """A run whose limit is known."""

    name: str
    limit: tuple[str, ...]
    """Kinds of bound that are right."""
    words: tuple[object, ...]
    """Options of `feedrate run`, beside dataset, workload, loader and OUT."""
    trouble: Trouble | None = None
    """Called as soon as the run has been started."""
    before: Callable[[], AbstractContextManager[tuple[list[str], object]]] | None = None
    """The run is within it; it gives what comes before the command, and a dataset in place of DATA."""
    fast: bool = False
    """Memory answers, and is asked for more than two cores can take: the client is the limit."""
    loaders: tuple[str, ...] = ("direct", "torch")
    flag: str = ""
    """A flag that must be raised."""


def hog(*words: object, nice: int = 0) -> Trouble:
    """stress-ng beside it, from before its start."""
    command = ["nice", "-n", str(nice), "stress-ng", "--quiet", *map(str, words)]

    def start(running: Running) -> None:
        running.stack.callback(end, begin(command))

    return start


def begin(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """A command in a process group of its own."""
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)


def end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


SHARES = 100_000
"""CPU shares of GROUP, against 1024 of a process that is in no cgroup."""


def hog_in_cgroup() -> Trouble:
    """Run `hog` in a cgroup of its own with twice the shares that the run has."""

    def start(running: Running) -> None:
        group = CPU / "feedrate-hogs"
        group.mkdir(exist_ok=True)
        (group / "cpu.shares").write_text(str(2 * SHARES))
        process = begin(["bash", "-c", f"echo $$ > {group}/cgroup.procs; exec stress-ng --quiet --cpu 4"])

        def stop() -> None:
            end(process)
            time.sleep(0.2)
            group.rmdir()

        running.stack.callback(stop)

    return start


def once_reading(act: Callable[[Running], None]) -> Trouble:
    """`act`, when the ranks have begun to read."""

    def start(running: Running) -> None:
        def wait() -> None:
            deadline = time.monotonic() + 60
            while running.process.poll() is None and time.monotonic() < deadline:
                with suppress(psutil.Error):
                    if any(spool.stat().st_size for spool in (FOLDER / "out" / "spool").glob("*")):
                        act(running)
                        return
                time.sleep(0.1)

        thread = threading.Thread(target=wait)
        thread.start()
        running.stack.callback(thread.join)

    return start


def shaped_files(rank: psutil.Process) -> list[Path]:
    """The open file that a rank books its emulated device in."""
    found = []
    with suppress(OSError):
        for place in Path(f"/proc/{rank.pid}/fd").iterdir():
            with suppress(OSError):
                if "/feedrate-" in str(place.readlink()) and place.stat().st_size == mmap.PAGESIZE:
                    found.append(place)
    return found


def stalls(running: Running) -> None:
    """Twice, the emulated device answers nothing for two seconds: booked by somebody else."""
    (first, *_) = [file for rank in running.ranks() for file in shaped_files(rank)]
    with first.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as shared:
        for _ in range(2):
            lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0)
            fcntl.fcntl(file, 37, lock)  # F_OFD_SETLKW
            tail = max(struct.unpack_from("q", shared)[0], time.monotonic_ns())
            struct.pack_into("q", shared, 0, tail + 2 * 10**9)
            fcntl.fcntl(file, 37, struct.pack("hhqqi4x", fcntl.F_UNLCK, 0, 0, 1, 0))
            time.sleep(3.0)


def throughout(running: Running, act: Callable[[], None]) -> None:
    """Call `act` again and again while the run goes on."""

    def keep() -> None:
        while running.process.poll() is None:
            with suppress(
                psutil.Error, ValueError, IndexError
            ):  # before its ranks are there, or at their end
                act()

    thread = threading.Thread(target=keep)
    thread.start()
    running.stack.callback(thread.join)


def pinned_among_hogs(running: Running) -> None:
    """The last rank and its workers stay on core 0, which four hogs take as well; the others on core 1."""
    hog("--cpu", 4, "--taskset", 0)(running)

    def pin() -> None:
        time.sleep(0.2)
        *others, last = running.ranks()
        for rank, core in [*((other, 1) for other in others), (last, 0)]:
            for process in (rank, *rank.children(recursive=True)):
                for thread in process.threads():
                    with suppress(OSError):
                        os.sched_setaffinity(thread.id, {core})

    throughout(running, pin)


@contextmanager
def quota(cores: float) -> Iterator[tuple[list[str], object]]:
    """A cgroup that may use so many cores."""
    group = GROUP / "quota"
    group.mkdir(exist_ok=True)
    (group / "cpu.cfs_quota_us").write_text(str(round(cores * 100_000)))
    try:
        yield ["bash", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "-"], DATA
    finally:
        time.sleep(0.3)
        group.rmdir()


@contextmanager
def device(rate: int = 0, *shared: float, cached: float = 0.0) -> Iterator[tuple[list[str], object]]:
    """A block device that gives so many bytes a second, to reads of this run alone or to all.

    `shared` is its latency, jitter and IOPS; `cached` is the share of the files that memory holds.
    """
    folder = FOLDER / "device"
    script = LAB / "device.sh"
    words = [script, "up", folder, "700M", rate, *(("shared", *shared) if shared else ())]
    up = subprocess.run(
        [str(word) for word in words], check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHON": sys.executable},
    )  # fmt: skip
    try:
        data = folder / "mnt" / "data"
        shutil.copytree(DATA, data)
        (folder / "mnt" / "other").write_bytes(os.urandom(2**26))
        os.sync()
        evict(path for path in (folder / "mnt").rglob("*") if path.is_file())
        files = sorted(data.rglob("*.npz"))
        for file in files[: round(cached * len(files))]:
            file.read_bytes()
        yield [str(script), "in", up.stdout.strip()], data
    finally:
        subprocess.run([script, "down", folder], check=True)


def neighbour(running: Running) -> None:
    """Somebody else reads from the device, four requests at a time."""
    words = f"--name=other --filename={FOLDER}/device/mnt/other --rw=randread --bs=256k --direct=1"
    command = ["fio", *words.split(), "--thread", "--numjobs=4", "--time_based", "--runtime=100"]
    running.stack.callback(end, begin(command))


def stopped(running: Running) -> None:
    """The last rank and its workers are stopped for 60 % of the time."""

    def stop() -> None:
        last = running.ranks()[-1]
        family = [last, *last.children(recursive=True)]
        for pause, act in ((0.6, psutil.Process.suspend), (0.4, psutil.Process.resume)):
            for process in family:
                with suppress(psutil.Error):
                    act(process)
            time.sleep(pause)

    throughout(running, stop)


@contextmanager
def late_opens(seconds: float) -> Iterator[tuple[list[str], object]]:
    """Opening a file of the dataset takes so long."""
    library, source = FOLDER / "slow.so", Path(__file__).with_name("slow_storage.c")
    subprocess.run(["/usr/bin/cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    yield ["env", f"LD_PRELOAD={library}", f"SLOW_STORAGE={seconds}:{DATA}"], DATA


def step(seconds: float) -> tuple[object, ...]:
    return ("--set", f"accelerator.step_seconds={seconds}")


def shaped(how: str) -> tuple[str, ...]:
    return ("--storage", f"shaped:{how}")


WARM = ("--cache", "warm")
FAST = {True: (*WARM, *step(0.002), "--steps", 2000), False: (*WARM, *step(0.02), "--steps", 120)}
"""2 GB/s a rank of the direct loader, 200 MB/s of the torch loader."""
STAY = ("--set", "loader.refill=persistent")
"""Workers that are started anew in each epoch of a second or two would be a limit of their own."""
ONE_SAMPLE = ("--set", "loader.batch_size=1", "--set", "accelerator.step_batch_size=1")
LATE = (*shaped("2GB/s,40ms"), *ONE_SAMPLE, *step(0.012))
"""A storage that takes its time for each request, and has room for many."""
ONE, BARRIERS = ("--set", "loader.workers=1"), ("--set", "training.sync=step")
STORAGE, CLIENT, QUOTA = ("bandwidth", "storage", "iops", "metadata"), ("client-cpu",), ("cpu-quota",)
BANDWIDTH, TOO_FEW = ("bandwidth",), ("latency", "loader")

# fmt: off
CASES = (
    Case("nothing", ("compute",), ("-n", 1, "--steps", 80)),
    Case("nothing, hogs of nice 19", ("compute",), ("-n", 1, "--steps", 80),
         trouble=hog("--cpu", 4, nice=19)),
    Case("shaped storage", BANDWIDTH, ("-n", 4, *shaped("160MB/s"), "--steps", 60)),
    Case("shaped storage, 1 rank", BANDWIDTH, ("-n", 1, *shaped("40MB/s"), "--steps", 50)),
    Case("shaped storage, barriers", BANDWIDTH, ("-n", 3, *shaped("150MB/s"), "--steps", 60, *BARRIERS)),
    Case("shaped storage, hogs of nice 19", BANDWIDTH, ("-n", 3, *shaped("120MB/s"), "--steps", 60),
         trouble=hog("--cpu", 4, nice=19)),
    Case("capped device", BANDWIDTH, ("-n", 3, "--steps", 40), before=lambda: device(80 * 10**6)),
    Case("capped device, barriers", BANDWIDTH, ("-n", 2, "--steps", 40, *BARRIERS),
         before=lambda: device(60 * 10**6)),
    Case("storage stalls for 2 s", STORAGE, ("-n", 2, *shaped("400MB/s"), "--steps", 80),
         trouble=once_reading(stalls)),
    Case("storage stalls for 2 s, barriers", STORAGE, ("-n", 3, *shaped("400MB/s"), "--steps", 80, *BARRIERS),
         trouble=once_reading(stalls)),
    Case("stress-ng --cpu 4", CLIENT, ("-n", 2), fast=True, trouble=hog("--cpu", 4)),
    Case("stress-ng --cpu 8, barriers", CLIENT, ("-n", 2, *BARRIERS), fast=True, trouble=hog("--cpu", 8)),
    Case("stress-ng in another cgroup", CLIENT, ("-n", 2), fast=True, trouble=hog_in_cgroup()),
    Case("hogs of nice -5", CLIENT, ("-n", 2), fast=True, trouble=hog("--cpu", 4, nice=-5)),
    Case("stress-ng beside shaped storage with room", CLIENT, ("-n", 2, *shaped("4GB/s")), fast=True,
         trouble=hog("--cpu", 8)),
    Case("too many ranks", CLIENT, ("-n", 12, *WARM, *STAY, *step(0.003), "--steps", 600),
         loaders=("direct",)),
    Case("too many ranks", CLIENT, ("-n", 6), fast=True, loaders=("torch",)),
    Case("CPU quota of 0.4", QUOTA, ("-n", 2), fast=True, before=lambda: quota(0.4)),
    Case("CPU quota of 0.6, barriers", QUOTA, ("-n", 2, *BARRIERS), fast=True, before=lambda: quota(0.6)),
    Case("a straggler without a core, barriers", CLIENT, ("-n", 3, *BARRIERS), fast=True,
         trouble=pinned_among_hogs),
    Case("one reader", ("loader",), ("-n", 1, *WARM, *ONE, *step(0.0005), "--steps", 2000),
         loaders=("direct",)),
    Case("one reader", ("loader",), ("-n", 1, *WARM, *ONE, *step(0.002), "--steps", 500), loaders=("torch",)),
    Case("one reader, latency", TOO_FEW, ("-n", 2, *LATE, *ONE, "--steps", 120)),
    Case("tiny window, latency", TOO_FEW, ("-n", 2, *LATE, "--steps", 120, "--set", "loader.prefetch=1",
         "--set", "loader.workers=4"), loaders=("direct",)),
    Case("device of 600 IOPS", ("iops",), ("-n", 4, "--steps", 40), before=lambda: device(0, 0.0005, 0, 600)),
    Case("device of 12 ms", ("latency",), ("-n", 1, "--steps", 40), before=lambda: device(0, 0.012),
         loaders=("torch",)),
    Case("device of 12 ms, enough requests in flight", ("compute",), ("-n", 1, "--steps", 40),
         before=lambda: device(0, 0.012), loaders=("direct",)),
    Case("files open late", ("metadata",), ("-n", 2, "--steps", 40), before=lambda: late_opens(0.1)),
    Case("half-warm device", ("memory",), ("-n", 3, "--steps", 40, *WARM),
         before=lambda: device(20 * 10**6, cached=0.75)),
    Case("neighbour on the device", STORAGE, ("-n", 3, "--steps", 60), trouble=neighbour,
         before=lambda: device(160 * 10**6, 0), flag="neighbour"),
    Case("a rank stopped for 60 %", ("straggler",), ("-n", 3, "--steps", 80, *BARRIERS),
         trouble=once_reading(stopped)),
)
# fmt: on


def run(case: Case, loader: str, number: int) -> dict[str, object]:
    """One run of a case: what feedrate says."""
    out = FOLDER / "out"
    shutil.rmtree(out, ignore_errors=True)
    with ExitStack() as stack:
        front, data = stack.enter_context(case.before()) if case.before else ([], DATA)
        words = [
            *feedrate("run", data, "--workload", "unet3d-tiny"), "--loader", loader, "--out", out, "--force",
            "--set", f"training.shuffle_seed={number}",
            *(STAY if loader == "torch" else ()),
            *(FAST[loader == "direct"] if case.fast else ()), *case.words,
        ]  # fmt: skip
        if "warm" in words:  # runs with a cold cache have pushed the files out
            read_in(DATA.rglob("*.npz"))
        command = [*front, *map(str, words)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT
        )
        with ExitStack() as troubles:
            if case.trouble:
                case.trouble(Running(process, troubles))
            try:
                said, _ = process.communicate(timeout=120)
            except subprocess.TimeoutExpired:
                for child in [*psutil.Process(process.pid).children(recursive=True), process]:
                    with suppress(psutil.Error):
                        child.kill()
                said, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"{case.name}, {loader}: {said}")
    (point,) = read_result(out).points
    assert point.bound is not None
    return {
        "kind": point.bound.kind,
        "x_ideal": round(point.x_ideal, 3),
        "flags": sorted(flag.name for flag in point.flags),
        "evidence": point.bound.evidence,
    }


def main(
    only: str = "", log: Path = FOLDER / "causes.jsonl", repeats: int = 2, table: Path | None = None
) -> None:
    """Run the cases whose name contains `only`, or write the table of what was run."""
    FOLDER.mkdir(exist_ok=True)
    GROUP.mkdir(exist_ok=True)
    (GROUP / "cpu.shares").write_text(str(SHARES))
    (GROUP / "cgroup.procs").write_text(str(os.getpid()))
    atexit.register(leave_group)
    done = []
    if log.exists():
        done = [json.loads(line) for line in log.read_text().splitlines()]
    if table:
        table.write_text(matrix(done))
        return
    if not DATA.exists():
        words = feedrate("generate", DATA, "--recipe", "tiny", "--files", "128")
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was set up is taken down
    known = {(row["case"], row["loader"], row["number"]) for row in done}
    for number in range(repeats):
        for case in CASES:
            for loader in case.loaders:
                if only not in case.name or (case.name, loader, number) in known:
                    continue
                named = run(case, loader, number)
                right = named["kind"] in case.limit and case.flag in ("", *named["flags"])
                known_limit = {"case": case.name, "loader": loader, "number": number, "limit": case.limit}
                row = {**known_limit, "right": right, **named}
                with log.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print("right" if right else "WRONG", case.name, loader, named["kind"], sep=" | ", flush=True)


def leave_group() -> None:
    """Leave GROUP, and remove it."""
    (CPU / "cgroup.procs").write_text(str(os.getpid()))
    with suppress(OSError):
        GROUP.rmdir()


def matrix(rows: Sequence[dict[str, Any]]) -> str:
    """Every cause, with what was named for it."""
    clients = [row for row in rows if row["limit"][0] in CLIENT_KINDS]
    blamed = sum(row["kind"] in STORAGE for row in clients)
    right = sum(row["right"] for row in rows)
    lines = [
        f"{right} of {len(rows)} runs name the known limit. Of {len(clients)} whose limit is the client, "
        f"{blamed} blame the storage.",
        "",
        "| cause | torch | X/X_ideal | direct | X/X_ideal |",
        "|---" * 5 + "|",
    ]
    for name in dict.fromkeys(row["case"] for row in rows):
        cells = [name]
        for loader in ("torch", "direct"):
            same = [row for row in rows if (row["case"], row["loader"]) == (name, loader)]
            named = ", ".join(sorted({row["kind"] for row in same}))
            right = f" {sum(row['right'] for row in same)}/{len(same)}" if same else ""
            mean = f"{sum(row['x_ideal'] for row in same) / len(same):.2f}" if same else ""
            cells += [named + right, mean]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    typer.run(main)
