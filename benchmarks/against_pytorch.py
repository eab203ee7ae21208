"""feedrate beside a plain PyTorch training on the same files: AU of both.

    python benchmarks/against_pytorch.py FOLDER [--only REGEX] [--out FILE]

FOLDER gets a dataset and the results; a folder in memory is best, since what is asked is how far the two
programs agree. `benchmarks/plain_training.py` is the training; feedrate runs with its default loader. Cases
called `cold` are for a FOLDER on the storage in question: make test-latency has them on devices of known
latency. Each case is run by both in turns, `--rounds` times: medians, with ranges in brackets. AU is
nominal compute / time, mean over ranks, without the first step of each epoch, as MLPerf Storage defines it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import typer
from processes import evict, feedrate, machine, publish, spread, table_line

from emulator.analysis.throughput import durations
from emulator.record.steps import read_steps

HERE = Path(__file__).parent
FILES, BATCH, WORKERS, EDGE = 1024, 4, 2, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job that both programs run."""

    name: str
    ranks: int
    steps: int
    step_seconds: float = 0.05
    form: str = "npz"
    """Format of the files."""
    cold: bool = False
    """The files are evicted from the page cache before each run; an epoch reads none twice."""


CASES = (
    *(Case(name=f"warm, {ranks} rank{'s' * (ranks > 1)}", ranks=ranks, steps=60) for ranks in (1, 4, 8, 16)),
    *(
        Case(name=f"cold, {ranks} ranks, {1000 * step:.0f} ms", ranks=ranks, steps=40, step_seconds=step,
        cold=True)
        for ranks in (1, 3, 6)
        for step in (0.035, 0.11, 0.3)
    ),
    *(
        # Twice the steps, because read-ahead decides AU for longer where these small requests starve it.
        Case(name=f"cold, {ranks} ranks, 35 ms, {form}", ranks=ranks, steps=80, step_seconds=0.035, form=form,
        cold=True)
        for form in ("hdf5", "jpeg", "npy")
        for ranks in (1, 3)
    ),
)  # fmt: skip


def utilisation(step: np.ndarray, seconds: np.ndarray, step_seconds: float) -> float:
    """AU in per cent of ranks whose steps took `seconds`, shape (ranks, steps), without first steps."""
    later = step > 0
    shares = [step_seconds * kept.sum() / own[kept].sum() for own, kept in zip(seconds, later, strict=True)]
    return 100 * float(np.mean(shares))


def dataset(case: Case, folder: Path) -> Path:
    """The folder of the case's files."""
    return folder / f"data/{case.form}-{FILES}"


def trained(case: Case, folder: Path, paths: list[Path]) -> float:
    """AU of the plain training."""
    meet = folder / "meet"
    meet.unlink(missing_ok=True)
    if case.cold:
        evict(paths)
    ranks = []
    for rank in range(case.ranks):
        request = {
            "rank": rank, "ranks": case.ranks, "steps": case.steps, "meet": str(meet),
            "paths": [str(path) for path in paths if not path.name.endswith("_y.npy")],
            "edge": EDGE, "batch": BATCH, "workers": WORKERS, "step_seconds": case.step_seconds,
        }  # fmt: skip
        command = [sys.executable, str(HERE / "plain_training.py"), json.dumps(request)]
        ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    said = np.array([json.loads(rank.communicate(timeout=600)[0]) for rank in ranks])
    _, step, begin, _, end = np.moveaxis(said, 2, 0)
    return utilisation(step, end - begin, case.step_seconds)


def emulated(case: Case, folder: Path) -> float:
    """AU by feedrate."""
    out = folder / "result"
    shutil.rmtree(out, ignore_errors=True)
    settings = {
        "accelerator.step_seconds": case.step_seconds, "training.sync": "step",
        "loader.refill": "epoch", "sample.format": case.form,
        **({"loader.crop": "[]", "loader.block_bytes": "8MiB"} if case.form == "jpeg" else {}),
    }  # fmt: skip
    command = feedrate(
        "run", dataset(case, folder), "-w", "unet3d-tiny", "-n", case.ranks, "--steps", case.steps,
        "--cache", "cold" if case.cold else "warm", "--out", out, "--force",
        *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    log = np.sort(read_steps(out), order=("rank", "epoch", "step")).reshape(case.ranks, case.steps)
    return utilisation(log["step"], durations(log), case.step_seconds)


def prepare(folder: Path, cases: Sequence[Case]) -> None:
    """Make the datasets of the cases."""
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases:
        place = dataset(case, folder)
        if not (place / "manifest.json").exists():
            words = feedrate("generate", place, "--recipe", "tiny", "--files", FILES, "--format", case.form)
            subprocess.run(words, check=True, capture_output=True)


def main(folder: Path, only: str = "", rounds: int = 1, out: Path | None = None) -> None:
    """Run the cases whose name the expression `only` finds; write the table to `out`, too."""
    folder = folder.resolve()
    cases = [case for case in CASES if re.search(only, case.name)]
    prepare(folder, cases)
    publish("feedrate beside PyTorch", machine(), table(folder, cases, rounds), out)


def table(folder: Path, cases: Sequence[Case], rounds: int) -> Iterator[str]:
    """Yield the lines of the table as they are measured."""
    columns = ("case", "training", "feedrate", "difference")
    yield table_line(*columns)
    yield "|---" * len(columns) + "|"
    for case in cases:
        paths = sorted(dataset(case, folder).rglob("sample_*"))
        turns = [(trained(case, folder, paths), emulated(case, folder)) for _ in range(rounds)]
        training, own = zip(*turns, strict=True)
        difference = f"{np.median(own) - np.median(training):+.1f}"
        yield table_line(case.name, spread(training, 1), spread(own, 1), difference)


if __name__ == "__main__":
    typer.run(main)
