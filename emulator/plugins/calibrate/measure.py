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
    # Before anything is kept: step times of a throttled GPU are not those of its kind.
    throttled = watch.require_unthrottled()
    power_limit = watch.span("power_limit_watts")
    fastest = min(variants, key=lambda variant: variant.timings[-1].mean / variant.timings[-1].batch_size)
    machine = describe_machine()
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device()) if request.device == "cuda" else None
    return Profile(
        model=request.model.name,
        patch=request.model.patch,
        created=utc_now(),
        command=request.command,
        default=fastest.name,
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
            power_limit_watts=power_limit[1] if power_limit else None,
            temperature_celsius=watch.span("temperature_celsius"),
            power_capped_share=watch.capped_share(),
        ),
        versions={**real.versions(), "kernel": platform.release(), "feedrate": machine["feedrate"]},
        variants=tuple(variants),
    )


def _variant(request: Request, mode: ComputeMode) -> Variant:
    timings = [_timing(request, mode, size) for size in sorted(set(request.batch_sizes))]
    line = fit_line([timing.batch_size for timing in timings], [timing.mean for timing in timings])
    if line:
        t0, t1 = _coefficient(line["t0"], line["t0_interval"]), _coefficient(line["t1"], line["t1_interval"])
        worst = 100 * line["worst_residual"]
        live.say(f"{mode.name:30} t(B) = {t0} + B x {t1}; off by {worst:.1f} % at most")
    return Variant(name=mode.name, layout="channels_last", **asdict(mode), **line, timings=tuple(timings))


def _coefficient(seconds: float, interval: tuple[float, float] | None) -> str:
    between = f" ({1e3 * interval[0]:.3g} to {1e3 * interval[1]:.3g} ms)" if interval else ""
    return show_seconds(seconds) + between


def _timing(request: Request, mode: ComputeMode, batch_size: int) -> Timing:
    """Measure steps and copies at one batch size, and say the figures. Raises DeviceError."""
    with real.device_errors(f"at batch size {batch_size}, {mode.name}"):
        real.forget()
        trainer = real.Trainer(request.model, request.device, mode)
        batch = real.made_up_batch(request.model, batch_size)
        seconds = real.time_steps(trainer, batch, request.steps, request.warmup)
        copy = real.copy_seconds(trainer, batch)
    timing = timing_of(batch_size, seconds, request.warmup, copy)
    error = show_seconds(timing.sd / math.sqrt(timing.steps))
    live.say(
        f"{mode.name:30} batch {batch_size:3d}   {show_seconds(timing.mean):>8} +- {error}   "
        f"lag-1 {timing.lag1:+.2f}   copy {show_seconds(copy)}"
    )
    return timing


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
    deviations = times - times.mean()
    power = float(deviations @ deviations)
    return float(deviations[1:] @ deviations[:-1]) / power if power > 0 else 0.0


def fit_line(batch_sizes: Sequence[int], seconds: Sequence[float]) -> dict[str, Any]:
    """Fit t(B) = t0 + B t1 to the mean seconds of a step by batch size; return the fields of Variant.

    There are none for fewer than two sizes. The intervals come from the distances of the means from the line,
    which are much larger than the errors of the means.
    """
    if len(batch_sizes) < 2:
        return {}
    sizes, means = np.asarray(batch_sizes, np.float64), np.asarray(seconds, np.float64)
    (t1, t0), covariance = np.polyfit(sizes, means, 1, cov="unscaled")
    residuals = means - t0 - t1 * sizes
    line: dict[str, Any] = {
        "t0": float(t0),
        "t1": float(t1),
        "t0_interval": None,
        "t1_interval": None,
        "worst_residual": float(np.max(np.abs(residuals) / means)),
    }
    # A line through two points has no residuals: nothing is known about its error.
    if freedom := len(sizes) - 2:
        variances = residuals @ residuals / freedom * np.diag(covariance)
        half1, half0 = student_t(0.95, freedom) * np.sqrt(variances)
        line["t0_interval"] = (float(t0 - half0), float(t0 + half0))
        line["t1_interval"] = (float(t1 - half1), float(t1 + half1))
    return line
