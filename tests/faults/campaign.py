"""The fault campaign: thousands of cases, each a command under one fault, and a table of their ends.

    python -m faults.campaign --seconds 600 --seed 20261122    (with the shim in LD_PRELOAD: test_campaign.py)

Whatever happens to a command, it ends within its deadline, prints no traceback, says what is wrong in one
line, leaves no temporary file and no process behind, touches no file of others; what it left is resumed to
the same bytes. Cases are cheap, because they run in warm workers or in forks of them. Each kind gets its
share of the cases. A case follows from the seed, its kind and its number: `--only KIND --case N` repeats one.
The promises of docs/faults.md name the classes of fault that uphold them.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import mmap
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random

import psutil
from command import ANSWERED, ROOT_AND_OVERSUBSCRIBED, Done, is_alive, unless_ended
from faults.harness import complaint, contents, forked, import_all, in_fork, inside, load_verbs
from faults.specimens import (
    READERS,
    SIZES,
    Reader,
    commands_of,
    damaged_case,
    make_specimens,
    victims,
    warm_up,
)
from faults.test_ownership import COMMANDS, NAMES, tree
from synthetic_results import plain_sweep, steps_of

from emulator.cli.main import Verbs
from emulator.errors import FeedrateError, storage_errors
from emulator.files import write_whole
from emulator.plugins.checkpoint import files as checkpoints
from emulator.record.out import RESULT, ResultFolder, read_result
from emulator.record.steps import read_steps

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
DEADLINE = 120.0
"""Seconds of a case, after which it counts as a hang."""
Case = Callable[["Bench", Path, Random, int], str]
"""Runs a case in a new folder; what is wrong, empty when nothing is."""


@dataclass(frozen=True)
class Bench:
    """Files that cases share."""

    specimens: Path
    """Intact files of every kind, read only."""
    shared: mmap.mmap
    """8 bytes that forks of a worker write to and the worker reads."""


@dataclass(frozen=True)
class Kind:
    """Something, and what happens to it."""

    fault: str
    """The class of fault."""
    name: str
    run: Case
    share: float = 1.0
    """Share of the cases."""
    needs_all: bool = True
    """It uses specimens of every kind, and not only datasets."""


DAMAGED = "a file is damaged"
READING = "calls of a reader fail"
WRITING = "calls of a writer fail"
KILLED = "killed before or after a call"
FOREIGN = "files of others"
RANKS = "one of several ranks is killed"


# ---- Calls of the kernel: how many a command makes, and the command while they fail.


def calls_of(work: Callable[[], Done]) -> tuple[Done, int]:
    """Return how `work`, a fork with a rule, ended, and how many calls matched its rule."""
    library = ctypes.CDLL(None)
    library.feedrate_faults(b"")
    done = work()
    return done, int(library.feedrate_faults_count())


@dataclass(frozen=True)
class Protocol:
    """Something that changes files in steps, and has to survive being cut off at each of them."""

    name: str
    begin: Callable[[Bench, Path], None]
    """Prepares `work`; the files that are struck lie in work/x."""
    act: Callable[[Bench, Path, str], Done]
    """Does it under a rule, in a fork."""
    check: Callable[[Bench, Path, Done], str]
    """Goes on without faults; what is wrong."""
    most: dict[str, int] = field(default_factory=dict)
    """Calls that it makes, by kinds of call, once they were counted."""


CHANGES = "write,fsync,rename,unlink,mkdir,close,truncate,open"
ERRORS = ("EIO", "EIO", "ENOSPC", "EACCES", "ESTALE", "EDQUOT", "EROFS", "ENOMEM", "EMFILE", "EINVAL",
          "EPERM")  # fmt: skip


def killed(protocol: Protocol, bench: Bench, work: Path, random: Random, number: int) -> str:
    """SIGKILL before or after the k-th call that changes something."""
    k = counted(protocol, bench, work, CHANGES)
    rule = (
        f"path={work}/x calls={CHANGES} mode={random.choice(('kill', 'killed'))} first={random.randint(1, k)}"
    )
    return struck(protocol, bench, work, rule)


def failing(protocol: Protocol, bench: Bench, work: Path, random: Random, number: int) -> str:
    """The k-th call, or every one from there on, fails with an error, or is short."""
    calls = random.choice(("write", "fsync", "rename", "close", "open", "mkdir", "stat", "list", "read,mmap",
                           "unlink", "truncate", CHANGES))  # fmt: skip
    k = counted(protocol, bench, work, calls)
    mode = "short" if random.random() < 0.1 else f"errno:{random.choice(ERRORS)}"
    times = random.choice((1, 1, 0))
    rule = f"path={work}/x calls={calls} mode={mode} first={random.randint(1, max(1, k))} times={times}"
    return struck(protocol, bench, work, rule)


def counted(protocol: Protocol, bench: Bench, work: Path, calls: str) -> int:
    """Count the calls of this kind that the protocol makes."""
    if calls not in protocol.most:
        trial = work / "trial"
        trial.mkdir()
        protocol.begin(bench, trial)
        rule = f"path={trial}/x calls={calls} mode=count"
        protocol.most[calls] = calls_of(lambda: protocol.act(bench, trial, rule))[1]
        shutil.rmtree(trial)
    return protocol.most[calls]


def struck(protocol: Protocol, bench: Bench, work: Path, rule: str) -> str:
    protocol.begin(bench, work)
    bench.shared[:8] = bytes(8)
    done = protocol.act(bench, work, rule)
    if done.status == -signal.SIGKILL:
        done = replace(done, status=0, err="killed")
    wrong = complaint(done) or protocol.check(bench, work, done)
    return wrong and f"{rule.replace(str(work), '')}: {wrong} ({(done.err + done.out)[-300:]!r})"


def clean_after(work: Path) -> str:
    left = [str(path.relative_to(work)) for path in work.rglob("*.part")]
    return f"temporary files are left: {left}" if left else ""


MADE = ("generate", "{x}", "--recipe", "tiny", "--threads", "2", *(f"--set={size}" for size in SIZES))


def of_dataset(name: str, start: str, words: Sequence[str], end: str, again: Sequence[str] = ()) -> Protocol:
    """A command that makes the specimen `end` out of the specimen `start` ("" for none), and resumes."""

    def named(parts: Sequence[str], work: Path) -> list[str]:
        return [part.format(x=work / "x") for part in parts]

    def begin(bench: Bench, work: Path) -> None:
        if start:
            shutil.copytree(bench.specimens / start, work / "x")

    def act(bench: Bench, work: Path, rule: str) -> Done:
        return forked(named(words, work), work, rule=rule)

    def check(bench: Bench, work: Path, done: Done) -> str:
        for parts in (again or words, ("verify", "{x}")):
            after = inside(named(parts, work), work)
            if after.status:
                return f"afterwards, feedrate {' '.join(parts)} gives {after.status}: {after.err[-300:]}"
        if contents(work / "x") != contents(bench.specimens / end):
            other = set(contents(work / "x").items()) ^ set(contents(bench.specimens / end).items())
            return f"other bytes than if nothing had happened: {sorted({name for name, _ in other})}"
        return clean_after(work)

    return Protocol(name, begin, act, check)


def of_results() -> Protocol:
    """A sweep's OUT: points are added one by one, then the step log; a resumed one keeps all of them."""
    whole = plain_sweep()
    steps = steps_of(whole)

    def fill(out: Path, done: Callable[[int], None]) -> int:
        empty = replace(whole, points=(), status="incomplete", knee=None)
        if (out / RESULT).exists():
            folder = ResultFolder.resume(out, read_result(out))
        else:
            folder = ResultFolder.create(out, empty, force=out.exists())
        for number in range(len(folder.result.points), len(whole.points)):
            folder.update(points=whole.points[: number + 1])
            done(number + 1)
        folder.complete(steps)
        done(len(whole.points))
        return 0

    def act(bench: Bench, work: Path, rule: str) -> Done:
        def tell(points: int) -> None:
            bench.shared[:8] = points.to_bytes(8, "little")

        return in_fork(lambda: guarded(partial(fill, work / "x", tell)), work, rule=rule)

    def check(bench: Bench, work: Path, done: Done) -> str:
        out, told = work / "x", int.from_bytes(bench.shared[:8], "little")
        if told or (out / RESULT).exists():
            found = read_result(out)
            if len(found.points) < told or found.points != whole.points[: len(found.points)]:
                return f"{told} points were written, {len(found.points)} are there"
        if os.path.lexists(out) and not (out / RESULT).exists():
            with suppress(OSError):  # cut off before there was a result: what is left must be in nobody's way
                out.rmdir()
        again = in_fork(lambda: guarded(partial(fill, out, lambda _: None)), work)
        if again.status or read_result(out).points != whole.points or len(read_steps(out)) != len(steps):
            return f"it does not resume: {again.err[-300:]}"
        return clean_after(work)

    return Protocol("a sweep's result", lambda bench, work: None, act, check)


def guarded(action: Callable[[], int]) -> int:
    """`action()`, its errors as the command prints them."""
    try:
        with storage_errors("cannot write"):
            return action()
    except FeedrateError as error:
        print(f"feedrate: error: {error}", file=sys.stderr)
        return error.exit_code


def of_checkpoints() -> Protocol:
    """Two checkpoints, the second of which takes the place of the first."""
    data = bytes(range(256)) * 64

    def write(root: Path) -> int:
        with checkpoints.locked(root):
            checkpoints.clean(root)
            for number in range(2):
                part = checkpoints.begin(root, number, "run")
                written = []
                for rank in range(2):
                    with (part / f"rank{rank}").open("xb") as file:
                        file.write(data)
                        file.flush()
                        os.fsync(file.fileno())
                    written.append((checkpoints.WrittenFile(name=f"rank{rank}", size=len(data), crc=0),))
                marker = checkpoints.Marker(
                    model="m", ranks=2, data=1, scale="1", seed=0, files=tuple(written)
                )
                checkpoints.commit(part, number, marker)
                if number:
                    checkpoints.remove(root / checkpoints.folder_name(0))
        return 0

    def act(bench: Bench, work: Path, rule: str) -> Done:
        return in_fork(lambda: guarded(partial(write, work / "x")), work, rule=rule)

    def check(bench: Bench, work: Path, done: Done) -> str:
        root = work / "x"
        for number in checkpoints.complete(root):
            marker = checkpoints.read_marker(root, number)
            for name in (file.name for files in marker.files for file in files):
                if (root / checkpoints.folder_name(number) / name).read_bytes() != data:
                    return f"checkpoint {number} looks complete, and {name} is not"
        with checkpoints.locked(root):
            checkpoints.clean(root)
        left = [path.name for path in root.iterdir() if checkpoints.PART in path.name]
        return f"left behind: {left}" if left else ""

    return Protocol("a checkpoint", lambda bench, work: None, act, check)


OTHER_SEED = (*MADE, "--files", "3", "--seed", "1", "--force")
PROTOCOLS = [
    of_dataset("generate", "", (*MADE, "--files", "3"), "made-3"),
    of_dataset("generate more", "made-3", (*MADE, "--files", "5"), "made-5"),
    of_dataset("generate --force", "made-3", OTHER_SEED, "made-other"),
    of_dataset("generate --subfolders", "", (*MADE, "--files", "3", "--subfolders", "2"), "made-folders"),
    of_dataset("verify --repair", "harmed", ("verify", "{x}", "--repair"), "made-3"),
    of_results(),
    of_checkpoints(),
]


def make_references(folder: Path) -> None:
    """Make the states that the protocols begin with and should end with."""
    for name, words in {
        "made-3": (*MADE, "--files", "3"),
        "made-5": (*MADE, "--files", "5"),
        "made-other": (*MADE, "--files", "3", "--seed", "1"),
        "made-folders": (*MADE, "--files", "3", "--subfolders", "2"),
    }.items():
        done = forked([word.format(x=folder / name) for word in words], folder)
        assert done.status == 0, done.err
    shutil.copytree(folder / "made-3", folder / "harmed")
    next((folder / "harmed").glob("sample_*0.npz")).unlink()
    next((folder / "harmed").glob("sample_*1.npz")).write_bytes(b"")


# ---- Commands that only read, while calls fail.


def unreadable(reader: Reader, bench: Bench, work: Path, random: Random, number: int) -> str:
    """An intact copy whose files cannot be opened, read, mapped, listed or closed."""
    copy = work / "case"
    shutil.copytree(bench.specimens / reader.folder, copy)
    calls = random.choice(("open", "read,mmap", "close", "stat", "list", "open,read,stat"))
    mode = random.choice(
        ("short", "errno:EIO", "errno:ESTALE", "errno:EACCES", "errno:ENOMEM", "errno:ENOTCONN")
    )
    rule = (
        f"path={copy} calls={calls} mode={mode} first={random.randint(1, 12)} times={random.choice((1, 0))}"
    )
    before = contents(copy)
    words = random.choice(commands_of(reader, copy, victims(reader, copy)[0], work))
    done = forked(words, work, memory=reader.memory, rule=rule)
    after = contents(copy)
    wrong = (
        complaint(done) or ("" if {**after, **before} == after else "files were changed") or clean_after(work)
    )
    return wrong and f"feedrate {' '.join(words)} with {rule}: {wrong}"


# ---- Trees of others.


def foreign_tree(bench: Bench, work: Path, random: Random, number: int) -> str:
    """Files, links, pipes and folders of others at names that feedrate uses: the same after any command."""
    theirs, texts = work / "theirs", (b"", b"{}", b"[]", b"PAR1PAR1", b'{"schema": 1}', b'{"a":1}\n{}\n',
                                      b'{"feedrate": "dataset", "schema": 1}')  # fmt: skip
    outside = work / "outside"
    outside.write_bytes(b"theirs, too")
    for name in random.sample(NAMES, random.randint(1, 8)):
        path = theirs / name
        if any(parent.is_file() for parent in path.parents) or os.path.lexists(path):
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError:  # a pipe or a link is there
            continue
        kind, empty_lock = random.randrange(20), path.name in ("lock", ".feedrate-lock")
        if kind == 0:
            path.symlink_to(random.choice(("../outside", "/nowhere", ".", "..")))
        elif kind == 1:
            os.mkfifo(path)
        elif kind == 2:
            path.mkdir()
        else:  # an empty lock is one that nobody holds
            path.write_bytes(
                random.choice((random.randbytes(random.randint(1, 40)), random.choice(texts[empty_lock:])))
            )
    before = {**tree(theirs), "outside": outside.read_bytes()}
    words = [word.replace("{}", str(theirs)) for word in random.choice(COMMANDS)]
    done = inside(words, work)
    after = {**tree(theirs), "outside": outside.read_bytes()}
    wrong = complaint(done)
    if not wrong and {**after, **before} != after:
        wrong = "files of others are gone or changed"
    if not wrong and done.status and after != before:
        wrong = f"a refused command left {sorted(set(after) - set(before))}"
    return wrong and f"feedrate {' '.join(words)}: {wrong}"


# ---- Whole commands with ranks, one process of which is killed.


@dataclass(frozen=True)
class Job:
    """A command with ranks; {x} is its OUT or folder, {data} a dataset."""

    words: Sequence[str]
    again: Sequence[str]
    """What goes on when something of it is there."""
    path: str = "{x}"
    """Where the calls are that kill, and which calls, and how many it makes."""
    calls: str = CHANGES
    most: int = 60
    mpirun: bool = False
    """It is started by an mpirun of the user's, which has messages of its own."""


TRAINING = ("{data}", "-w", "unet3d-tiny", "--loader", "direct", "--steps", "2")
SWEEP = ("sweep", *TRAINING, "--counts", "1,2", "--out", "{x}")
RUN = ("run", *TRAINING, "-n", "2", "--out", "{x}")
CHECKPOINT = (
    *("checkpoint", "{x}", "--subset", "--ranks", "2", "--scale", "1/20000", "--writes", "2", "--reads", "1"),
    *("--pause", "0s", "--out", "{x}-out"),
)
JOBS = {
    "a sweep": Job(SWEEP, (*SWEEP[:-2], "--resume", "{x}")),
    "a run that reads": Job(RUN, (*RUN, "--force"), "{data}/sample_", "open,read,close", 30),
    "a checkpoint": Job(CHECKPOINT, (*CHECKPOINT, "--force")),
    "generate under mpirun": Job((*MADE, "--files", "3"), (*MADE, "--files", "3"), most=80, mpirun=True),
}


def ranks_killed(job: Job, bench: Bench, work: Path, random: Random, number: int) -> str:
    """One of its processes is killed at a random call."""
    out, counter = work / "x", work / "counter"
    if job.words[0] == "checkpoint":
        out.mkdir()
    counter.write_bytes(bytes(8))

    def named(words: Sequence[str]) -> list[str]:
        return [word.format(x=out, data=bench.specimens / "trained") for word in words]

    mode, first = random.choice(("kill", "killed")), random.randint(1, job.most)
    rule = f"path={named([job.path])[0]} calls={job.calls} mode={mode} first={first}"
    quiet = {**os.environ, **ROOT_AND_OVERSUBSCRIBED}
    faults = {"FEEDRATE_FAULTS": rule, "FEEDRATE_FAULTS_COUNT": str(counter)}
    feedrate = [sys.executable, "-m", "emulator"]
    mpirun = [str(Path(sys.executable).with_name("mpirun")), "--bind-to", "none", "-n", "2"]
    begin = time.monotonic()
    with (work / "out").open("w") as stdout, (work / "err").open("w") as stderr:
        process = subprocess.Popen(
            [*(mpirun if job.mpirun else ()), *feedrate, *named(job.words)], env={**quiet, **faults},
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True,
        )  # fmt: skip
        memory: set[Path] = set()
        while process.poll() is None and time.monotonic() < begin + DEADLINE / 2:
            memory = memory or {
                path for path in Path("/dev/shm").glob("feedrate-*") if session(path) == process.pid
            }
            time.sleep(0.02)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"hang: {rule}"
    status, texts = process.returncode, [(work / name).read_text(errors="replace") for name in ("out", "err")]
    done = Done(status, texts[0], texts[1], 0)
    wrong = "" if status == -signal.SIGKILL or job.mpirun else complaint(done)
    if "Traceback" in texts[1]:
        wrong = "traceback"
    deadline = time.monotonic() + 5
    while (orphans := processes_with(str(out))) and time.monotonic() < deadline:
        time.sleep(0.1)
    wrong = wrong or (f"processes outlive it: {orphans}" if orphans else "")
    kept = len(read_result(out).points) if (out / RESULT).exists() else 0
    if not wrong:
        goes_on = job.again if (out / RESULT).exists() or job.words is CHECKPOINT else job.words
        try:
            after = subprocess.run([*feedrate, *named(goes_on)], capture_output=True, text=True, env=quiet,
                                   timeout=DEADLINE / 2, check=False)  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"{rule.replace(str(work), '')}: {' '.join(named(goes_on))} hangs afterwards"
        if after.returncode not in ANSWERED:
            wrong = f"it does not go on: {after.stderr[-300:]}"
        elif (out / RESULT).exists() and len(read_result(out).points) < kept:
            wrong = "points are lost"
        elif job.words[0] == "generate" and contents(out) != contents(bench.specimens / "made-3"):
            wrong = "other bytes than if nothing had happened"
        elif left := [str(path) for path in memory if path.exists()]:
            wrong = f"left in memory: {left}"
    wrong = wrong or clean_after(work)
    return wrong and f"{rule.replace(str(work), '')}: {wrong}: {texts[1][-300:]!r}"


def session(scratch: Path) -> int:
    """The session of the process that a folder in memory belongs to; 0: it has ended."""
    with suppress(OSError, ValueError, IndexError):
        return os.getsid(int(scratch.name.split("-")[2]))
    return 0


def processes_with(text: str) -> list[int]:
    """Find the processes whose command lines hold `text`."""
    return [
        process.pid for process in psutil.process_iter()
        if text in " ".join(unless_ended(process.cmdline, [])) and is_alive(process)
    ]  # fmt: skip


def damaged(reader: Reader, bench: Bench, work: Path, random: Random, number: int) -> str:
    """A file of this kind holds something else than it should."""
    return damaged_case(reader, bench.specimens, work, random, inside)


SLOW = ("run.json on a page", "PyTorch trace")
"""Readers that take ten times as long as others: a quarter of the cases of these."""


def share_of(reader: Reader, share: float) -> float:
    return share / 4 if reader.name in SLOW else share


KINDS = [
    *(Kind(DAMAGED, f"{one.name}, damaged", partial(damaged, one), share_of(one, 1)) for one in READERS),
    *(Kind(READING, f"{one.name}, calls fail", partial(unreadable, one), share_of(one, 0.6))
      for one in READERS),
    *(Kind(KILLED, f"{one.name}, killed at a step", partial(killed, one), 1.6, False) for one in PROTOCOLS),
    *(Kind(WRITING, f"{one.name}, writing fails", partial(failing, one), 1.6, False) for one in PROTOCOLS),
    Kind(FOREIGN, FOREIGN, foreign_tree, 8.0, False),
    *(Kind(RANKS, f"{name}, one killed", partial(ranks_killed, job), 0.15) for name, job in JOBS.items()),
]  # fmt: skip


# ---- Workers, and who watches them.


@dataclass(frozen=True)
class Task:
    """Settings of a campaign."""

    kinds: Sequence[Kind]
    bench: Bench
    seed: int
    root: Path
    end: float
    """time.monotonic() from which on no case begins."""
    cases: int
    """In all, about; 0: any number."""
    stride: int
    """Workers: each takes every stride-th number."""
    first: dict[str, int]
    """The number of the first case of each kind."""

    def due(self, next_number: dict[str, int]) -> Kind | None:
        """The kind that has had the least of its share; None: it is over."""
        if time.monotonic() > self.end or 0 < self.cases <= sum(next_number.values()):
            return None
        return min(self.kinds, key=lambda kind: next_number[kind.name] / kind.share)


def work_on(task: Task, next_number: dict[str, int], pipe: int) -> None:
    """Run cases in this process, a worker; a line into `pipe` before and after each."""
    library = ctypes.CDLL(None)
    library.feedrate_faults_share()
    library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what a command leaves running is seen here
    library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    bench = replace(task.bench, shared=mmap.mmap(-1, 4096))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)

    def tell(*words: object) -> None:
        os.write(pipe, (json.dumps(words) + "\n").encode())

    while (kind := task.due(next_number)) is not None:
        number = next_number[kind.name]
        next_number[kind.name] += task.stride
        work = Path(tempfile.mkdtemp(prefix="case-", dir=task.root))
        tell("begin", kind.name, number)
        wrong = kind.run(bench, work, Random(f"{task.seed}/{kind.name}/{number}"), number) or left_running()
        shutil.rmtree(work, ignore_errors=True)
        tell("end", kind.name, number, wrong)
        if number % 50 == 0:
            gc.collect()


PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def left_running() -> str:
    """End and name the processes that outlive a command by more than 5 s."""
    deadline = time.monotonic() + 5
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ""
        if not ended and time.monotonic() > deadline:
            break
        if not ended:
            time.sleep(0.02)
    left = psutil.Process().children(recursive=True)
    names = [" ".join(unless_ended(process.cmdline, []))[-200:] for process in left]
    for process in left:
        unless_ended(process.kill, None)
        process.wait()
    return f"processes are left behind: {names}"


@dataclass
class Worker:
    """A worker as its parent sees it."""

    pid: int
    pipe: int
    said: bytes = b""
    doing: tuple[str, int] | None = None
    broken: str = ""
    """Errors of the judge itself."""
    since: float = 0.0


Found = dict[str, list[tuple[int, str]]]
"""The cases of each class: their numbers, and what was wrong."""


def campaign(task: Task, found: Found, save: Callable[[], object]) -> None:
    """Add cases to `found`; `save()` is called every few seconds."""
    kinds, workers = task.kinds, task.stride
    starts = [{kind.name: task.first[kind.name] + k for kind in kinds} for k in range(workers)]

    def hire(k: int) -> Worker:
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            os.setpgid(0, 0)
            status = 1
            try:
                work_on(task, starts[k], theirs)
                status = 0
            except BaseException as error:  # noqa: BLE001 - the judge itself has failed: that is a failure, too
                import traceback

                text = "".join(traceback.format_exception(error))[-1500:]
                os.write(theirs, (json.dumps(["broken", text]) + "\n").encode())
            finally:
                os._exit(status)
        os.close(theirs)
        return Worker(pid, ours)

    staff, saved = {k: hire(k) for k in range(workers)}, time.monotonic()
    while staff:
        if time.monotonic() - saved > 5:
            save()
            saved = time.monotonic()
        for k, one in list(staff.items()):
            ready, _, _ = select.select([one.pipe], [], [], 0.05)
            data = os.read(one.pipe, 65536) if ready else None
            one.said += data or b""
            *lines, one.said = one.said.split(b"\n")
            for line in map(json.loads, lines):
                if line[0] == "begin":
                    one.doing, one.since = (line[1], line[2]), time.monotonic()
                    starts[k][line[1]] = line[2] + workers
                elif line[0] == "end":
                    found[line[1]].append((line[2], line[3]))
                    one.doing = None
                else:
                    one.broken = line[1]
            late = one.doing is not None and time.monotonic() - one.since > DEADLINE
            if data != b"" and not late:
                continue
            if late:
                with suppress(ProcessLookupError):
                    os.killpg(one.pid, signal.SIGKILL)
            _, code = os.waitpid(one.pid, 0)
            os.close(one.pipe)
            del staff[k]
            if one.doing is not None:
                why = "hang" if late else one.broken or f"the process died: {os.waitstatus_to_exitcode(code)}"
                found[one.doing[0]].append((one.doing[1], why))
                staff[k] = hire(k)
    save()


def keep_verbs() -> None:
    """Have each verb of the command line built once, and not again in each case: a third of its time."""
    built, kept = Verbs.get_command, {}

    def get_command(self: Verbs, context: object, name: str) -> object:
        if name not in kept:
            kept[name] = built(self, context, name)
        return kept[name]

    Verbs.get_command = get_command  # type: ignore[method-assign]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--only", nargs="+", default=[""], help="kinds whose names end so, or of this class")
    parser.add_argument("--cases", type=int, default=0, help="how many in all, about")
    parser.add_argument("--case", type=int, help="with --only: the number of the case")
    parser.add_argument("--log", type=Path, help="keep what was found here, and go on where it ends")
    parser.add_argument("--specimens", type=Path, help="keep intact files here for another time")
    given = parser.parse_args()
    kinds = [kind for kind in KINDS if kind.name.endswith(tuple(given.only)) or kind.fault in given.only]
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="feedrate-campaign-", dir=memory) as folder:
        root = Path(folder)
        specimens = given.specimens or root / "specimens"
        load_verbs()
        if not specimens.exists():
            specimens.mkdir()
            make_references(specimens)
            if given.specimens or any(kind.needs_all for kind in kinds):
                make_specimens(specimens)
        if (specimens / "modules").exists():
            import_all((specimens / "modules").read_text().split())
        elif any(kind.needs_all for kind in kinds):
            warm_up(specimens, root / "warm")
            (specimens / "modules").write_text("\n".join(name for name in sys.modules if name != "__main__"))
        keep_verbs()
        gc.freeze()
        bench = Bench(specimens, mmap.mmap(-1, 4096))
        os.environ["HOME"] = folder
        if given.case is not None:
            ctypes.CDLL(None).feedrate_faults_share()
            work = root / "case"
            work.mkdir()
            kind = kinds[0]
            shown = os.dup(2)
            wrong = kind.run(bench, work, Random(f"{given.seed}/{kind.name}/{given.case}"), given.case)
            os.write(shown, f"{kind.name}, case {given.case}: {wrong or 'nothing is wrong'}\n".encode())
            return bool(wrong)
        found = earlier(given.log, kinds, given.seed)
        first = {name: max((number for number, _ in ends), default=-1) + 1 for name, ends in found.items()}
        end = time.monotonic() + given.seconds
        task = Task(kinds, bench, given.seed, root, end, given.cases, given.workers, first)

        def save() -> None:
            if given.log:
                write_whole(given.log, json.dumps({"seed": given.seed, "found": found}))

        campaign(task, found, save)
    return show(found, given.seed)


def earlier(log: Path | None, kinds: Sequence[Kind], seed: int) -> Found:
    """Return what was found before with this seed."""
    kept = json.loads(log.read_text()) if log and log.exists() else {}
    before = kept.get("found", {}) if kept.get("seed") == seed else {}
    return {kind.name: [tuple(end) for end in before.get(kind.name, [])] for kind in kinds}


def promises() -> dict[str, list[str]]:
    """Each fault in the table of docs/faults.md, and the campaign's classes that are named beside it."""
    rows = [line.split(" | ") for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")][1:]
    return {row[0][2:]: re.findall(r"\*(.+?)\*", row[-1]) for row in rows}


def show(found: Found, seed: int) -> bool:
    """Print what was wrong, and the table; whether anything was wrong."""
    for name, ends in found.items():
        for number, wrong in ends:
            if wrong:
                print(f"--seed {seed} --only '{name}' --case {number}: {wrong}\n")
    by_class: dict[str, list[list[tuple[int, str]]]] = {}
    for kind in KINDS:
        if kind.name in found:
            by_class.setdefault(kind.fault, []).append(found[kind.name])
    by_class["all"] = list(found.values())
    print(f"seed {seed}\n\n| class of fault | kinds | cases | failures |\n|---|---|---|---|")
    for name, kinds in by_class.items():
        ends = [end for kind in kinds for end in kind]
        print(f"| {name} | {len(kinds)} | {len(ends):,} | {sum(bool(wrong) for _, wrong in ends):,} |")
    print("\n| promise (docs/faults.md) | cases | |\n|---|---|---|")
    for promise, classes in promises().items():
        ends = [end for name in classes for kind in by_class.get(name, ()) for end in kind]
        if ends:
            broken = any(wrong for _, wrong in ends)
            print(f"| {promise} | {len(ends):,} | {'broken' if broken else 'upheld'} |")
    return any(wrong for ends in found.values() for _, wrong in ends)


if __name__ == "__main__":
    sys.exit(main())
