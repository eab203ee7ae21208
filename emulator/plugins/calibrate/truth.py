"""The truth test: train on the device, emulate the training with the measured profile, and compare.

Each round measures the step time, trains, and emulates (in odd rounds in the opposite order), so that all
three run under the same conditions. Real and emulated training use the loop of run.train, with the same
loader, the same files in the same order and the same crops. They are compared round by round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from emulator import live
from emulator.analysis.drift import repeat_interval
from emulator.analysis.throughput import Throughput, throughput
from emulator.config.storage import StorageSpec
from emulator.config.workload import AcceleratorSpec, LoaderSpec
from emulator.dataset.manifest import Manifest, open_dataset
from emulator.loader import make_loader
from emulator.order import EpochPlan, RankPlan
from emulator.plugins.calibrate import trainer as real
from emulator.plugins.calibrate.measure import timing_of
from emulator.plugins.calibrate.models import Request
from emulator.record.steps import StepLog
from emulator.run.accelerator import Accelerator, MonotonicClock, endless
from emulator.run.comm import Comm
from emulator.run.point import open_storage
from emulator.run.train import train
from emulator.storage.base import Storage

COPIES = 5
"""Timed copies to the device in each round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One real and one emulated training, without their first steps, as in every result."""

    step_seconds: float
    """Mean of the replayed profile, including the copy to the device."""
    real: Throughput
    emulated: Throughput


def validate(request: Request, dataset: Path, loader: LoaderSpec, rounds: int) -> list[Round]:
    """Train on the dataset in the first mode of the request and emulate it; say a line per round.

    Raises DatasetError, DeviceError, StorageError.
    """
    opened, mode = open_dataset(dataset), request.modes[0]
    spec = replace(loader, crop=request.model.patch)
    with (
        real.device_errors(f"at batch size {spec.batch_size}, {mode.name}"),
        open_storage(opened.store, StorageSpec(), Comm(), direct=False) as files,
    ):
        trainer = real.Trainer(request.model, request.device, mode)
        real.limit_threads(request.device, request.threads)
        batch = real.made_up_batch(request.model, spec.batch_size)
        real.time_steps(trainer, batch, 1, request.warmup)
        pairs = Pairs(spec, files, opened.manifest, request, trainer)
        done: list[Round] = []
        for number in range(rounds):
            times = real.time_steps(trainer, batch, request.steps, 1)
            copies = real.time_copies(trainer, batch, COPIES)
            done.append(pairs.round(number, replayed(spec.batch_size, times, copies)))
            live.say(_round_line(number, done[-1]))
    return done


def replayed(batch_size: int, times: Sequence[float], copies: Sequence[float]) -> AcceleratorSpec:
    """Return the accelerator to emulate; its steps include the copy of the batch to the device."""
    timing = timing_of(batch_size, times, 1, copies)
    return AcceleratorSpec(
        name="this one",
        step_seconds=timing.mean + timing.copy_seconds,
        step_batch_size=batch_size,
        provenance="measured",
        compute="empirical",
        quantiles=tuple(seconds + timing.copy_seconds for seconds in timing.quantiles),
    )


class Pairs:
    """Trains for some steps on a real and on an emulated accelerator, alternately."""

    def __init__(
        self, spec: LoaderSpec, storage: Storage, manifest: Manifest, request: Request, trainer: real.Trainer
    ) -> None:
        self._spec, self._storage, self._manifest = spec, storage, manifest
        self._request = request
        self._trainer = trainer

    def round(self, number: int, spec: AcceleratorSpec) -> Round:
        """Train once on each, the emulated one with the step times of `spec` and first in odd rounds."""
        clock = MonotonicClock()
        accelerators: dict[str, RealAccelerator | Accelerator] = {
            "real": RealAccelerator(self._trainer, clock),
            "emulated": Accelerator(endless(spec, number, 0), clock),
        }
        order = ("emulated", "real") if number % 2 else ("real", "emulated")
        found = {name: self._train(accelerators[name], number) for name in order}
        return Round(step_seconds=spec.step_seconds, **found)

    def _train(self, accelerator: RealAccelerator | Accelerator, number: int) -> Throughput:
        """Train for some steps; the number of the round is the seed of order and crops."""
        loader: Any = make_loader("torch", self._spec, self._storage, self._manifest, seed=number)
        real.limit_threads(self._request.device, self._request.threads)  # the loader has set it to one
        try:
            if isinstance(accelerator, RealAccelerator):
                loader.hand_over(accelerator.receive)
            plan = EpochPlan(samples=self._manifest.samples, ranks=1, batch_size=self._spec.batch_size)
            plan.require_a_step()
            log = StepLog(0, 0)
            rank_plan = RankPlan(plan=plan, steps=self._request.steps + 1, seed=number)
            train(rank_plan, loader, accelerator.compute, log, MonotonicClock(), as_training=True)
            return throughput(log.rows(1))
        finally:
            loader.close()


class RealAccelerator:
    """Trains on the batch that the loader has just delivered."""

    def __init__(self, trainer: real.Trainer, clock: MonotonicClock) -> None:
        self._trainer = trainer
        self._clock = clock
        self._batch: Any = None
        self._checked = False

    def receive(self, batch: Any) -> None:
        if not self._checked:
            self._checked = True
            self._trainer.require_trainable(*batch)
        self._batch = batch

    def compute(self, begin: float) -> tuple[float, float]:
        """Train on the batch; return the seconds of the step, and its end."""
        started = self._clock.now()  # not `begin`: a real accelerator cannot begin before
        self._trainer.step(*self._trainer.put(*self._batch))
        end = self._clock.now()
        return end - started, end


HEAD = "round  step time   samples/s real  emulated   ratio    AU real  emulated"


def _round_line(number: int, pair: Round) -> str:
    rate, emulated = pair.real.samples_per_second, pair.emulated.samples_per_second
    return (
        f"{number + 1:5d}  {1e3 * pair.step_seconds:6.1f} ms   {rate:14.2f}  {emulated:8.2f}   "
        f"{emulated / rate:5.3f}    {100 * pair.real.au:5.1f} %   {100 * pair.emulated.au:5.1f} %"
    )


def summary_lines(rounds: Sequence[Round]) -> list[str]:
    """Return lines with samples/s and AU of both, with 95 % intervals, and the comparison.

    The ratio is the geometric mean over the rounds, with an interval by Student's t. A single disturbed round
    does not change the medians, of the ratio and of the difference in AU, much.
    """
    lines = []
    for name in ("real", "emulated"):
        runs: list[Throughput] = [getattr(pair, name) for pair in rounds]
        rates, shares = [run.samples_per_second for run in runs], [100 * run.au for run in runs]
        lines.append(f"{name:9} {_with_interval(rates)} samples/s, AU {_with_interval(shares)} %")
    logs = [math.log(pair.emulated.samples_per_second / pair.real.samples_per_second) for pair in rounds]
    interval = repeat_interval(logs)
    between = f" ({math.exp(interval[0]):.3f} to {math.exp(interval[1]):.3f})" if interval else ""
    points = 100 * np.median([pair.emulated.au - pair.real.au for pair in rounds])
    return [
        *lines,
        f"emulated / real samples/s: {math.exp(np.mean(logs)):.3f}{between}, "
        f"median {math.exp(np.median(logs)):.3f}; AU {points:+.1f} points",
    ]


def _with_interval(values: Sequence[float]) -> str:
    interval = repeat_interval(values)
    middle = float(np.mean(values))
    return f"{middle:.2f} +- {interval[1] - middle:.2f}" if interval else f"{middle:.2f}"
