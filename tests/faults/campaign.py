"""The fault campaign: many commands, each under one fault, and a table of how they ended.

    python -m faults.campaign --cases 2000 --seed 1    (with the shim in LD_PRELOAD: test_campaign.py)

Whatever happens to a command, it ends in time, without a traceback, with one line that says what is wrong.
What it was writing is resumed to the same bytes. A case follows from the seed, its kind and its number.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psutil
from command import ANSWERED, Done, feedrate, started
from faults.harness import complaint, contents, forked, load_verbs
from s3_server import BUCKET, s3_server

from emulator.record.out import read_result
from emulator.record.steps import read_steps

ROOT = Path(__file__).resolve().parents[2]
SIZES = ("size.bytes_min=20kB", "size.min_edge=8", "size.bytes_mean=40kB", "size.bytes_sd=4kB")
MADE = ("generate", "{x}", "--recipe", "tiny", "--threads", "2", *(f"--set={size}" for size in SIZES))
FORMATS = ("npz", "npy", "nii.gz", "hdf5", "tfrecord", "parquet", "jpeg")
RUN = ("-w", "unet3d-tiny", "--loader", "direct")
ERRORS = ("EIO", "ENOSPC", "EACCES", "ESTALE", "EDQUOT", "EROFS", "EMFILE", "EPERM")
CHANGES = "open,write,fsync,close,rename,unlink,mkdir"


@dataclass(frozen=True)
class Bench:
    """Intact files that cases copy."""

    specimens: Path

    def copy(self, name: str, work: Path) -> Path:
        return Path(shutil.copytree(self.specimens / name, work / "x", symlinks=True))


def make_specimens(folder: Path) -> None:
    """One small intact folder of each kind, made by the commands themselves."""

    def made(name: str, *words: object) -> None:
        end = feedrate(*(str(word).format(x=folder / name) for word in words))
        assert end.status == 0, end.err

    for form in FORMATS:
        many = ("--set=samples_per_file=3",) if form in ("hdf5", "tfrecord", "parquet") else ()
        made(form, *MADE, "--files", 3, f"--set=format={form}", *many)
    made("npz-5", *MADE, "--files", 5)
    made("trained", "generate", "{x}", "--recipe", "tiny", "--files", 32, "--no-fsync")
    made("result", "run", folder / "trained", *RUN, "-n", 2, "--steps", 4, "--out", "{x}")
    made("mlperf", "export", "--mlperf", folder / "result", "--out", "{x}")
    shutil.copytree(folder / "npz", folder / "harmed")
    next((folder / "harmed").glob("sample_*0.npz")).unlink()
    next((folder / "harmed").glob("sample_*1.npz")).write_bytes(b"")
    for source in ("workloads/unet3d-a100.toml", "datasets/kits19/recipe.toml",
                   "results/systems/ai-2023-weka-6-nodes.toml"):  # fmt: skip
        (folder / "toml").mkdir(exist_ok=True)
        shutil.copy(ROOT / source, folder / "toml")


# ---- Documents and samples with other bytes.

READERS = [
    *((form, "sample_*", ("verify {x}", "run {x} " + " ".join(RUN) + " --dry-run -n 1")) for form in FORMATS),
    ("npz", "manifest.json", ("verify {x}", "generate {x} --recipe tiny --files 3")),
    ("npz", "samples-*.npy", ("verify {x}",)),
    ("result", "run.json", ("report {x}", "compare {x} {x}", "export --mlperf {x} --out {o}")),
    ("result", "steps*.parquet", ("report {x}",)),
    ("toml", "unet3d*.toml", ("workloads {f}", "datasize -w {f} --accelerators 4")),
    ("toml", "recipe.toml", ("generate {o} --recipe {f} --files 2 --dry-run",)),
    ("toml", "ai-*.toml", ("efficiency --system {f}",)),
    ("mlperf", "**/*.json", ("import {x} --out {o}",)),
    ("mlperf", "**/*.yaml", ("import {x} --out {o}", "import {f} --out {o}.toml")),
]
TOKENS = (
    b"-1",
    b"1e999",
    b"9" * 30,
    b"null",
    b'"\\u001b[31m"',
    b"[" * 60,
    b"{}",
    b"nan",
    b"\xff",
    b"\0",
    b"../../x",
)


def damaged(data: bytes, random: Random) -> bytes:
    """Other bytes: some flipped, cut out, doubled, cut off, or a value in a document replaced."""
    at, length = random.randrange(len(data) or 1), random.choice((1, 4, 64, 4096))
    part = data[at : at + length]
    return random.choice(
        (
            data[:at] + bytes(255 - byte for byte in part) + data[at + length :],
            data[:at] + data[at + length :],
            data[:at] + part + data[at:],
            data[:at],
            data[:at] + random.choice(TOKENS) + data[at + random.choice((1, 4)) :],
            data[:at] + random.randbytes(len(part)) + data[at + length :],
        )
    )


def damaged_file(bench: Bench, work: Path, random: Random) -> str:
    """Commands that read a damaged file end with a result or a line; a sample's damage is found."""
    name, pattern, commands = random.choice(READERS)
    copy = bench.copy(name, work)
    victim = random.choice(sorted(path for path in copy.glob(pattern) if path.is_file()))
    before = victim.read_bytes()
    victim.write_bytes(after := damaged(before, random))
    found = contents(copy)
    for number, command in enumerate(commands):
        words = [word.format(x=copy, f=victim, o=work / f"out-{number}") for word in command.split()]
        done = forked(words, work)
        wrong = complaint(done)
        if done.status == 0 and words[0] == "verify" and before != after and "sample" in victim.name:
            wrong = wrong or "the damage was not found"
        if "\x1b[31m" in done.out + done.err:
            wrong = wrong or "an escape sequence of the file reached the terminal"
        if any(contents(copy).get(file) != data for file, data in found.items()) and words[0] != "generate":
            wrong = wrong or "files were changed"
        if wrong:
            return f"feedrate {' '.join(words)}: {wrong}"
    return ""


# ---- Writers whose calls fail, or that are killed.

WRITERS = [
    ("", (*MADE, "--files", "3"), "npz"),
    ("npz", (*MADE, "--files", "5"), "npz-5"),
    ("harmed", ("verify", "{x}", "--repair"), "npz"),
]


def _struck(bench: Bench, work: Path, random: Random, mode: str) -> str:
    """Run a writer under a rule, then without: the second ends what the first began, to the same bytes."""
    start, command, end = random.choice(WRITERS)
    if start:
        bench.copy(start, work)
    words = [word.format(x=work / "x") for word in command]
    calls = random.choice((CHANGES, *CHANGES.split(",")))
    times = random.choice((1, 1, 0))
    rule = f"path={work}/x calls={calls} mode={mode} first={random.randint(1, 90)} times={times}"
    done = forked(words, work, rule=rule)
    if wrong := "" if done.status == -signal.SIGKILL else complaint(done):
        return f"{rule}: {wrong}"
    for again in (words, ["verify", str(work / "x")]):
        after = forked(again, work)
        if after.status:
            return f"{rule}: afterwards feedrate {' '.join(again)} gives {after.status}: {after.err[-300:]}"
    if contents(work / "x") != contents(bench.specimens / end):
        return f"{rule}: other bytes than without a fault"
    left = [path.name for path in work.rglob("*.part")]
    return f"{rule}: {left} are left" if left else ""


def failing_calls(bench: Bench, work: Path, random: Random) -> str:
    return _struck(bench, work, random, random.choice(("short", *(f"errno:{error}" for error in ERRORS))))


def killed_writer(bench: Bench, work: Path, random: Random) -> str:
    return _struck(bench, work, random, random.choice(("kill", "killed")))


# ---- Real ranks, real limits, real endpoints.


def killed_role(bench: Bench, work: Path, random: Random) -> str:
    """A process of a sweep is killed or stopped at a random time: the sweep ends, and --resume ends it."""
    out = work / "out"
    words = ("sweep", bench.specimens / "trained", *RUN, "--counts", "1,2", "--steps", 30)
    sweep = started(*words, "--out", out, "--storage-timeout", "5s", start_new_session=True)
    time.sleep(random.uniform(0.2, 6.0))
    group = [pid for pid in psutil.pids() if _session(pid) == sweep.pid]
    role = random.choice(group or [sweep.pid])
    with suppress(ProcessLookupError):
        os.kill(role, random.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT)))
    try:
        told = sweep.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(sweep.pid, signal.SIGKILL)
        sweep.communicate()
        return f"it goes on for over 60 s after process {role} of {group} was killed"
    done = Done(sweep.returncode, *told, 0)
    if "Traceback" in done.err:
        return f"traceback: {done.err[-400:]}"
    time.sleep(1.0)
    if left := [pid for pid in group if _session(pid) == sweep.pid]:
        return f"processes {left} are left"
    if not (out / "run.json").exists():
        return ""
    points = len(read_result(out).points)
    again = feedrate(
        "sweep", bench.specimens / "trained", *RUN, "--counts", "1,2", "--steps", 30, "--resume", out
    )
    if again.status not in ANSWERED and "is complete" not in again.err:
        return f"--resume gives {again.status}: {again.err[-300:]}"
    result = read_result(out)
    whole = len(result.points) == 2 >= points and len(read_steps(out)) == 90
    return "" if whole else f"{len(result.points)} points, {len(read_steps(out))} steps"


def _session(pid: int) -> int:
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
        return 0 if state == "Z" else int(session)
    except OSError:
        return 0


def limited(bench: Bench, work: Path, random: Random) -> str:
    """A process limit is a line, and not a hang."""
    limit = random.choice(("-v 400000", "-v 900000", "-n 12", "-n 40", "-f 64", "-f 0", "-u 20", "-s 64"))
    words = random.choice(
        (("verify", bench.specimens / "npz"), ("report", bench.specimens / "result"),
         ("generate", work / "x", *MADE[2:], "--files", 4),
         ("run", bench.specimens / "trained", *RUN, "-n", 1, "--steps", 2, "--out", work / "out"))
    )  # fmt: skip
    command = [
        "bash",
        "-c",
        f'ulimit {limit}; exec "$@"',
        "-",
        sys.executable,
        "-m",
        "emulator",
        *map(str, words),
    ]
    return _ends(command, f"ulimit {limit}: feedrate {words[0]}")


def _ends(command: list[str], name: str, seconds: float = 60.0) -> str:
    """Run a command, which must end with a result or without a traceback."""
    environment = {**os.environ, "LD_PRELOAD": ""}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        start_new_session=True, cwd=ROOT,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"{name} goes on for over {seconds:.0f} s"
    by_python = "Fatal Python error" in err or "could not" in err or "OpenBLAS" in err or "import" in err
    if process.returncode and ("Traceback" in err or "internal error" in err) and not by_python:
        return f"{name}: {err[-400:]}"
    return (
        "" if process.returncode == 0 or err or out else f"{name}: status {process.returncode} without a word"
    )


def full_disk(bench: Bench, work: Path, random: Random) -> str:
    """A disk that fills up: a line, and the same command goes on once there is room."""
    disk = work / "disk"
    disk.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={random.randint(8, 200)}k", "none", disk], check=True
    )
    try:
        words = [word.format(x=disk / "x") for word in (*MADE, "--files", "5", "--no-space-check")]
        done = feedrate(*words)
        wrong = complaint(done)
        subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
        after = feedrate(*words)
        if not wrong and (after.status or contents(disk / "x") != contents(bench.specimens / "npz-5")):
            wrong = f"it does not go on: {after.err[-300:]}"
        return wrong
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def two_at_once(bench: Bench, work: Path, random: Random) -> str:
    """Two writers of a dataset: what is there afterwards is whole."""
    data = bench.copy("harmed", work) if random.random() < 0.5 else work / "x"
    words = [word.format(x=data) for word in (*MADE, "--files", "5")]
    other = random.choice((words, ["verify", str(data), "--repair"], ["adopt", str(data), "--force"]))
    running = [started(*words)]
    time.sleep(random.uniform(0, 1.5))
    running.append(started(*other))
    for process in running:
        done = Done(0, *process.communicate(timeout=100), 0)
        if "Traceback" in done.err or "internal error" in done.err:
            return done.err[-400:]
    after = [feedrate(*words), feedrate("verify", data)]
    adopted = other[0] == "adopt" and "adopted" in after[0].err
    whole = all(end.status == 0 for end in after) and contents(data) == contents(bench.specimens / "npz-5")
    return "" if whole or adopted else f"{other[0]}: {after[0].err[-200:]} {after[1].out[-200:]}"


def lying_endpoint(bench: Bench, work: Path, random: Random) -> str:
    """An S3 endpoint whose answers are damaged, cut, or slow: verify ends with a line, or finds all right."""
    with s3_server() as endpoint:
        for path in (bench.specimens / "npz").rglob("*"):
            if path.is_file():
                name = path.relative_to(bench.specimens / "npz")
                endpoint.objects[f"ds/{name}"] = path.read_bytes()
        left = [random.randint(1, 6)]

        def lie(request) -> bool:  # type: ignore[no-untyped-def]
            left[0] -= 1
            if left[0] not in range(-random.randint(0, 3), 1):
                return False
            head = b'HTTP/1.1 206 P\r\nETag: "a"\r\nContent-Range: bytes 0-9/10\r\nContent-Length: 10\r\n\r\n'
            request.close_connection = True
            answer = damaged(head + b"0123456789", random)
            try:
                for at in range(0, len(answer), 16):
                    request.wfile.write(answer[at : at + 16])
                    time.sleep(random.choice((0, 0, 0.2)))
            except OSError:
                pass
            return True

        endpoint.lie = lie
        place = f"s3://{BUCKET}/ds?timeout=1s&retries=2"
        done = feedrate("verify", place, "--storage-timeout", "4s", timeout=60, **endpoint.environment())
    return complaint(done)


KINDS: dict[str, tuple[Callable[[Bench, Path, Random], str], float]] = {
    "a document or a sample is damaged": (damaged_file, 0.5),
    "calls of a writer fail": (failing_calls, 0.2),
    "a writer is killed before or after a call": (killed_writer, 0.2),
    "a process of a sweep is killed": (killed_role, 0.02),
    "a process limit": (limited, 0.03),
    "a full disk": (full_disk, 0.015),
    "two commands at once": (two_at_once, 0.015),
    "an endpoint that lies": (lying_endpoint, 0.02),
}
"""Name -> what runs a case in a new folder and says what is wrong, and its share of the cases."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", default="20261128")
    parser.add_argument("--only", default=[""], nargs="+", help="Parts of the names of kinds.")
    parser.add_argument("--case", type=int, help="Only the case of this number.")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    load_verbs()
    ctypes.CDLL(None).feedrate_faults(b"")
    failures = 0
    with tempfile.TemporaryDirectory(prefix="campaign-") as place:
        bench = Bench(Path(place) / "specimens")
        bench.specimens.mkdir()
        make_specimens(bench.specimens)
        print("| kind | cases | failures | seconds |\n|---|---|---|---|", flush=True)
        for name, (run, share) in KINDS.items():
            if not any(part in name for part in given.only):
                continue
            wrongs, began = [], time.monotonic()
            numbers = range(max(1, round(given.cases * share))) if given.case is None else [given.case]
            for number in numbers:
                work = Path(tempfile.mkdtemp(dir=place))
                if wrong := run(bench, work, Random(f"{given.seed}/{name}/{number}")):
                    wrongs.append(f"  --only {name!r} --case {number}: {wrong}")
                shutil.rmtree(work)
            print(f"| {name} | {len(numbers)} | {len(wrongs)} | {time.monotonic() - began:.0f} |", flush=True)
            print("".join(f"{wrong}\n" for wrong in wrongs), end="", file=sys.stderr, flush=True)
            failures += len(wrongs)
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
