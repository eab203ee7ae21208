"""The twin: a simulation fitted to three process counts, held against five that were not in the fit."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from command import feedrate

from emulator.record.out import read_result
from emulator.record.result import RunResult

SEEN, UNSEEN = "1,4,9", "2,3,5,6,8"
"""Counts of the fit, of which 9 is beyond saturation on a storage that feeds five; and the others."""
JOB = ("--workload", "unet3d-tiny", "--set", "accelerator.step_seconds=0.1", "--set", "access.refill=never")
"""4 samples of 1 MB in 100 ms: 40 MB/s a rank. In slow steps a busy machine's scheduler does not show.
The knee of a system is that of ranks that read on; borders of epochs as short as these cost a sweep 3 %."""

Sweep = Callable[[str, Path], None]
"""Runs a sweep over counts like `1,4,9` and writes its result into a folder."""


@dataclass(frozen=True)
class Twin:
    """Prediction and outcome for UNSEEN."""

    predicted: RunResult
    measured: RunResult

    @property
    def errors(self) -> list[float]:
        """Errors of throughput, relative, one for each count."""
        pairs = zip(self.predicted.points, self.measured.points, strict=True)
        return [guess.samples_per_second / real.samples_per_second - 1 for guess, real in pairs]

    @property
    def knee_error(self) -> float:
        return self.predicted.knee.n_au / self.measured.knee.n_au - 1

    @property
    def limit(self) -> float:
        """Predicted bytes/s at the largest count."""
        return self.predicted.points[-1].bytes_per_second

    def hold(self, limit: float) -> None:
        """Median error of throughput at most 3 %, knee within 5 %, the `limit` in bytes/s within 5 %."""
        print(
            [f"{100 * error:+.2f} %" for error in self.errors],
            f"knee {100 * self.knee_error:+.2f} %, limit {100 * (self.limit / limit - 1):+.2f} %",
        )
        assert statistics.median(map(abs, self.errors)) <= 0.03
        assert abs(self.knee_error) <= 0.05
        assert abs(self.limit / limit - 1) <= 0.05


def twin(sweep: Sweep, data: Path, steps: int, folder: Path) -> Twin:
    """Sweep over SEEN, fit, simulate UNSEEN, then sweep over them; everything is kept below `folder`."""
    sweep(SEEN, folder / "seen")
    system = folder / "system.toml"
    done = feedrate("fit", folder / "seen", "--out", system)
    assert done.status == 0, done.err
    print(done.out)
    words = ("--steps", steps, "--system", system, "--dataset", data, "--counts", UNSEEN)
    done = feedrate("simulate", *JOB, *words, "--out", folder / "predicted")
    assert done.status == 0, done.err
    sweep(UNSEEN, folder / "measured")
    return Twin(read_result(folder / "predicted"), read_result(folder / "measured"))
