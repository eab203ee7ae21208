"""Measure an accelerator in every mode at every batch size, and make a profile."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from emulator import live
from emulator.analysis.drift import student_t
from emulator.config.profile import Device, Profile, Timing, Variant
from emulator.plugins.calibrate import trainer as real
from emulator.plugins.calibrate.health import GpuWatch
from emulator.plugins.calibrate.models import ComputeMode, Request
from emulator.record.machine import describe_machine, utc_now
from emulator.run.accelerator import quantiles_of
from emulator.units import show_seconds


def calibrate(request: Request) -> Profile:
    """Make a profile, and say each figure. Raises DeviceError: out of memory, throttled, no compiler."""
    if request.device == "cpu":
        torch.set_num_threads(request.threads)
    with GpuWatch(real.nvml_name(request.device)) as watch:
        variants = [_variant(request, mode) for mode in request.modes]
    throttled = watch.require_unthrottled()
    limit = watch.span("power_limit_watts")
    machine = describe_machine()
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device()) if request.device == "cuda" else None
    return Profile(
        model=request.model.name,
        patch=request.model.patch,
        created=utc_now(),
        command=request.command,
        default=min(variants, key=lambda v: v.timings[-1].mean / v.timings[-1].batch_size).name,
        device=Device(
            kind=request.device,
            name=gpu.name if gpu else machine["cpu"],
            memory_bytes=gpu.total_memory if gpu else None,
            threads=None if gpu else request.threads,
            driver=watch.driver,
            throttled=throttled,
            sm_clock_mhz=watch.span("sm_clock_mhz"),
            memory_clock_mhz=watch.span("memory_clock_mhz"),
            power_watts=watch.span("power_watts"),
            power_limit_watts=limit[1] if limit else None,
            temperature_celsius=watch.span("temperature_celsius"),
            power_capped_share=watch.capped_share(),
        ),
        versions={**real.versions(), "kernel": platform.release(), "feedrate": machine["feedrate"]},
        variants=tuple(variants),
    )


def _variant(request: Request, mode: ComputeMode) -> Variant:
    timings = []
    for size in sorted(set(request.batch_sizes)):
        timing = measure(request, mode, size)
        timings.append(timing)
        live.say(
            f"{mode.name:30} batch {size:3d}   {show_seconds(timing.mean):>8} "
            f"+- {show_seconds(timing.sd / math.sqrt(timing.steps))}   lag-1 {timing.lag1:+.2f}   "
            f"copy {show_seconds(timing.copy_seconds)}"
        )
    line = fit_line([timing.batch_size for timing in timings], [timing.mean for timing in timings])
    if line:
        t0, t1 = (
            show_seconds(line[name])
            + (f" ({1e3 * interval[0]:.3g} to {1e3 * interval[1]:.3g} ms)" if interval else "")
            for name, interval in (("t0", line["t0_interval"]), ("t1", line["t1_interval"]))
        )
        live.say(
            f"{mode.name:30} t(B) = {t0} + B x {t1}; off by {100 * line['worst_residual']:.1f} % at most"
        )
    return Variant(name=mode.name, layout="channels_last", **asdict(mode), **line, timings=tuple(timings))


def measure(request: Request, mode: ComputeMode, batch_size: int) -> Timing:
    """Measure steps and copies at one batch size. Raises DeviceError."""
    with real.device_errors(f"at batch size {batch_size}, {mode.name}"):
        real.forget()
        trainer = real.Trainer(request.model, request.device, mode)
        batch = real.made_up_batch(request.model, batch_size)
        seconds = real.time_steps(trainer, batch, request.steps, request.warmup)
        copy = real.copy_seconds(trainer, batch)
    return timing_of(batch_size, seconds, request.warmup, copy)


def timing_of(batch_size: int, seconds: Sequence[float], warmup: int, copy_seconds: float) -> Timing:
    times = np.asarray(seconds, dtype=np.float64)
    return Timing(
        batch_size=batch_size,
        steps=len(times),
        warmup=warmup,
        mean=float(times.mean()),
        sd=float(times.std(ddof=1)),
        lag1=lag1(times),
        copy_seconds=copy_seconds,
        quantiles=quantiles_of(times),
    )


def lag1(times: NDArray[np.float64]) -> float:
    """Return the lag-1 autocorrelation of the times; 0 if they are all equal."""
    off = times - times.mean()
    power = float(off @ off)
    return float(off[1:] @ off[:-1]) / power if power > 0 else 0.0


def fit_line(batch_sizes: Sequence[int], seconds: Sequence[float]) -> dict[str, Any]:
    """Fit t(B) = t0 + B t1 to the mean seconds of a step by batch size; return the fields of Variant.

    There are none for fewer than two sizes. The intervals come from the distances of the means from the line,
    which are much larger than the errors of the means.
    """
    if len(batch_sizes) < 2:
        return {}
    sizes, mean = np.asarray(batch_sizes, np.float64), np.asarray(seconds, np.float64)
    (t1, t0), covariance = np.polyfit(sizes, mean, 1, cov="unscaled")
    residual, freedom = mean - t0 - t1 * sizes, len(sizes) - 2
    t0_interval = t1_interval = None
    if freedom:
        reach = student_t(0.95, freedom) * np.sqrt(residual @ residual / freedom * np.diag(covariance))
        t1_interval, t0_interval = (
            (float(value - half), float(value + half)) for value, half in zip((t1, t0), reach, strict=True)
        )
    return {
        "t0": float(t0),
        "t1": float(t1),
        "t0_interval": t0_interval,
        "t1_interval": t1_interval,
        "worst_residual": float(np.max(np.abs(residual) / mean)),
    }
