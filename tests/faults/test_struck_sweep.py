"""A sweep that is struck again and again: points that were shown stay, rows are exact, --resume goes on.

As root: `pytest -m faults tests/faults/test_struck_sweep.py`, for FEEDRATE_FAULTS_SECONDS (600) seconds.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from command import ANSWERED, ROOT_AND_OVERSUBSCRIBED

from emulator.errors import FeedrateError
from emulator.record.out import read_result
from emulator.record.steps import read_steps

CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(clock, now);
    FILE *file = clock == CLOCK_REALTIME ? fopen(getenv("CLOCK_STEP"), "r") : NULL;
    long step = 0;
    if (file) { if (fscanf(file, "%ld", &step) == 1) now->tv_sec += step; fclose(file); }
    return done;
}
"""
STEPS, COUNTS = 30, (1, 2, 3)


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 3 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", disk], check=True)
    yield disk / "out"
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.faults
@pytest.mark.timeout(7200)
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_points_stay_rows_are_exact_and_resume_goes_on(tiny: Path, out: Path, tmp_path: Path, capsys) -> None:
    seed = int(os.environ.get("FEEDRATE_FAULTS_SEED", "20261122"))
    random, end = Random(seed), time.monotonic() + float(os.environ.get("FEEDRATE_FAULTS_SECONDS", "600"))
    data, step, shim = tmp_path / "data", tmp_path / "step", tmp_path / "clock.so"
    shutil.copytree(tiny, data)
    step.write_text("0")
    (tmp_path / "clock.c").write_text(CLOCK)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", shim, tmp_path / "clock.c", "-ldl"], check=True)
    environment = {**os.environ, **ROOT_AND_OVERSUBSCRIBED, "LD_PRELOAD": str(shim), "CLOCK_STEP": str(step)}
    struck: dict[str, int] = {}
    kept: list[object] = []
    sweeps = 0
    while time.monotonic() < end or kept:
        kind = random.choice(("signal", "clock", "disk", "dataset", "nothing"))
        goes_on = ("--resume", out) if (out / "run.json").exists() else ("--out", out)
        words = ("sweep", data, "-w", "unet3d-tiny", "--loader", "direct", "--steps", STEPS, "--counts",
                 ",".join(map(str, COUNTS)), *goes_on)  # fmt: skip
        if not (out / "run.json").exists() and out.exists():
            words += ("--force",)
        command = [sys.executable, "-m", "emulator", *map(str, words)]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            time.sleep(random.uniform(0.5, 15))
            strike(kind, process, data, step, out, random)
            _, said = process.communicate(timeout=300)
        struck[kind] = struck.get(kind, 0) + 1
        assert "Traceback" not in said and "internal error" not in said, (seed, kind, said)
        points = []
        with suppress(FeedrateError):  # there is no result yet
            points = list(read_result(out).points)
        assert points[: len(kept)] == kept, (seed, kind, "a point that was shown is gone")
        kept = points
        if process.returncode in ANSWERED:
            assert [point.ranks for point in points] == list(COUNTS), (seed, kind)
            assert len(read_steps(out)) == STEPS * sum(COUNTS), (seed, kind)
            shutil.rmtree(out)
            kept, sweeps = [], sweeps + 1
    with capsys.disabled():
        print(f"\nseed {seed}: {sum(struck.values())} commands, {sweeps} sweeps complete; struck by {struck}")


def strike(
    kind: str, process: subprocess.Popen[str], data: Path, step: Path, out: Path, random: Random
) -> None:
    if kind == "signal":
        process.send_signal(random.choice((signal.SIGINT, signal.SIGTERM, signal.SIGKILL)))
    elif kind == "clock":
        step.write_text(str(random.choice((-3600, 3600, 0))))
    elif kind == "disk":
        filler = out.parent / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        time.sleep(3)
        filler.unlink()
    elif kind == "dataset":
        away = data.with_name("away")
        data.rename(away)
        time.sleep(random.uniform(0.5, 4))
        away.rename(data)
