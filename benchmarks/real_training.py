"""Real training of a 3D U-Net beside its emulation with the step times just measured, on one GPU or CPU.

    python benchmarks/real_training.py DIR [-w WORKLOAD] [--model unet3d] [--device cuda] [--precision bf16]
        [--compile] [--batch N] [--rounds 6] [--steps 200] [--warmup 20]

DIR is a dataset of `feedrate generate --payload ct-realistic`. Each round measures the step time, trains, and
emulates (in odd rounds in the opposite order), so that all three run under the same conditions. Both use the
loop of run.train with the same loader, files, order and crops, and leave out the first step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from emulator.analysis.drift import student_t
from emulator.analysis.throughput import Throughput, throughput
from emulator.config.storage import StorageSpec
from emulator.config.workload import AcceleratorSpec, LoaderSpec, load_workload
from emulator.dataset.manifest import Manifest, open_dataset
from emulator.launch.comm import Comm
from emulator.loader import make_loader
from emulator.order import EpochPlan, RankPlan
from emulator.plugins.calibrate import trainer as real
from emulator.plugins.calibrate.measure import timing_of
from emulator.plugins.calibrate.models import ComputeMode, choose_device, model_named
from emulator.record.steps import StepLog
from emulator.run.accelerator import Accelerator, MonotonicClock, endless
from emulator.run.point import open_storage
from emulator.run.train import train
from emulator.storage.base import Storage


def main(
    dataset: Path,
    workload: Annotated[str, typer.Option("--workload", "-w")] = "unet3d-tiny",
    model_name: Annotated[str, typer.Option("--model")] = "unet3d",
    device_name: Annotated[str, typer.Option("--device")] = "auto",
    precision: str = "bf16",
    compiled: Annotated[bool, typer.Option("--compile")] = False,
    batch_size: Annotated[int, typer.Option("--batch", help="default: the workload's")] = 0,
    rounds: int = 6,
    steps: int = 200,
    warmup: int = 20,
) -> None:
    model, device = model_named(model_name), choose_device(device_name)
    spec = replace(load_workload(workload).loader, crop=model.patch)
    spec = replace(spec, batch_size=batch_size or spec.batch_size)
    mode = ComputeMode(precision=precision, compiled=compiled)
    opened = open_dataset(dataset)
    print(f"{model.name} on {device}, {mode.name}, batch size {spec.batch_size}, {steps} steps")
    print("round  step time   samples/s real  emulated   ratio    AU real  emulated")
    if device == "cpu":
        torch.set_num_threads(1)  # those of the loader are beside it
    with open_storage(opened.store, StorageSpec(), Comm(), direct=False) as files:
        trainer = real.Trainer(model, device, mode)
        batch = real.made_up_batch(model, spec.batch_size)
        real.time_steps(trainer, batch, 1, warmup)
        measured_rounds: list[Round] = []
        for number in range(rounds):
            times = real.time_steps(trainer, batch, steps, 1)
            emulated = replayed(spec.batch_size, times, real.copy_seconds(trainer, batch))
            clock = MonotonicClock()
            accelerators = [RealAccelerator(trainer, clock), Accelerator(endless(emulated, number, 0), clock)]
            # In turns, because the storage may give more to the first or to the second.
            order = accelerators[::-1] if number % 2 else accelerators
            job = partial(trained, number, spec, files, opened.manifest, steps)
            measured = {accelerator: job(accelerator) for accelerator in order}
            measured_rounds.append(
                Round(emulated.step_seconds, *(measured[accelerator] for accelerator in accelerators))
            )
            print(measured_rounds[-1].line(number), flush=True)
    print("\n".join(["", *summary_lines(measured_rounds)]))


@dataclass(frozen=True, slots=True)
class Round:
    """One real and one emulated training."""

    step_seconds: float
    """Mean of the replayed profile, including the copy to the device."""
    real: Throughput
    emulated: Throughput

    def line(self, number: int) -> str:
        rate, emulated = self.real.samples_per_second, self.emulated.samples_per_second
        return (
            f"{number + 1:5d}  {1e3 * self.step_seconds:6.1f} ms   {rate:14.2f}  {emulated:8.2f}   "
            f"{emulated / rate:5.3f}    {100 * self.real.au:5.1f} %   {100 * self.emulated.au:5.1f} %"
        )


def replayed(batch_size: int, times: Sequence[float], copy_seconds: float) -> AcceleratorSpec:
    """The accelerator to emulate; its steps include the copy of the batch to the device."""
    timing = timing_of(batch_size, times, 1, copy_seconds)
    return AcceleratorSpec(
        name="this one",
        step_seconds=timing.mean + copy_seconds,
        step_batch_size=batch_size,
        provenance="measured",
        compute="empirical",
        quantiles=tuple(seconds + copy_seconds for seconds in timing.quantiles),
    )


def trained(
    number: int,
    spec: LoaderSpec,
    storage: Storage,
    manifest: Manifest,
    steps: int,
    accelerator: RealAccelerator | Accelerator,
) -> Throughput:
    """Train for some steps; the number of the round is the seed of order and crops."""
    threads = torch.get_num_threads()
    loader: Any = make_loader("torch", spec, storage, manifest, seed=number)
    torch.set_num_threads(threads)  # the loader has set it to one
    try:
        if isinstance(accelerator, RealAccelerator):
            hand_over(loader, accelerator.receive)
        plan = EpochPlan(samples=manifest.samples, ranks=1, batch_size=spec.batch_size)
        plan.require_a_step()
        log = StepLog(0, 0)
        rank_plan = RankPlan(plan=plan, steps=steps + 1, seed=number)
        train(rank_plan, loader, accelerator.compute, log, MonotonicClock(), as_training=True)
        return throughput(log.rows(1))
    finally:
        loader.close()


def hand_over(loader: Any, take: Callable[[Any], None]) -> None:
    """Call `take` with each batch's tensors, which `loader` drops in an emulation, before it yields it."""
    batch_of = loader._batch

    def batch_with_tensors(collated: Any) -> Any:
        batch = batch_of(collated)
        take(collated.tensors)
        return batch

    loader._batch = batch_with_tensors


class RealAccelerator:
    """Trains on the batch that the loader has just delivered."""

    def __init__(self, trainer: real.Trainer, clock: MonotonicClock) -> None:
        self._trainer, self._clock = trainer, clock
        self._batch: Any = None

    def receive(self, batch: Any) -> None:
        image, label = batch
        if int(label.max()) >= real.CLASSES or not bool(torch.isfinite(image).all()):
            raise SystemExit("no training on random bytes: generate DIR with --payload ct-realistic")
        self._batch = batch

    def compute(self, begin: float) -> tuple[float, float]:
        """Train on the batch; return the seconds of the step, and its end."""
        started = self._clock.now()  # not `begin`: a real accelerator cannot begin before
        self._trainer.step(*self._trainer.put(*self._batch))
        end = self._clock.now()
        return end - started, end


def summary_lines(rounds: Sequence[Round]) -> list[str]:
    """Samples/s and AU of both, and the comparison, with 95 % intervals; the ratio is a geometric mean."""
    lines = []
    for name in ("real", "emulated"):
        runs: list[Throughput] = [getattr(pair, name) for pair in rounds]
        rates, shares = [run.samples_per_second for run in runs], [100 * run.au for run in runs]
        lines.append(f"{name:9} {with_interval(rates)} samples/s, AU {with_interval(shares)} %")
    logs = [math.log(pair.emulated.samples_per_second / pair.real.samples_per_second) for pair in rounds]
    interval = repeat_interval(logs)
    between = f" ({math.exp(interval[0]):.3f} to {math.exp(interval[1]):.3f})" if interval else ""
    points = 100 * np.median([pair.emulated.au - pair.real.au for pair in rounds])
    return [
        *lines,
        f"emulated / real samples/s: {math.exp(np.mean(logs)):.3f}{between}, "
        f"median {math.exp(np.median(logs)):.3f}; AU {points:+.1f} points",
    ]


def repeat_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean of one measurement's repeats (Student 1908); None for fewer than two."""
    if len(values) < 2:
        return None
    half = student_t(0.95, len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def with_interval(values: Sequence[float]) -> str:
    interval = repeat_interval(values)
    middle = float(np.mean(values))
    return f"{middle:.2f} +- {interval[1] - middle:.2f}" if interval else f"{middle:.2f}"


if __name__ == "__main__":
    typer.run(main)
