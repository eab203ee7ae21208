"""Measure an accelerator: every way of computing at every batch size, and what a profile keeps of it."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulator.analysis.throughput import student_t
from emulator.config.profile import SCHEMA, Device, Profile, Timing, Variant, profile_text
from emulator.files import write_whole
from emulator.record.machine import describe_machine, utc_now
from emulator.satellites.calibrate.health import Watch
from emulator.satellites.calibrate.models import DeviceKind, Model, Way, fit_line, timing_of
from emulator.units import show_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to measure."""

    model: Model
    device: DeviceKind
    sizes: tuple[int, ...]
    """Batch sizes."""
    ways: tuple[Way, ...]
    steps: int
    """Steps that are measured at each batch size."""
    warmup: int
    """Steps before them that are not."""
    threads: int = 1
    """CPU only: threads that compute. Ranks that share cores have one each."""
    command: str = "feedrate calibrate"


def calibrate(request: Request, say: Callable[[str], None]) -> Profile:
    """Measure it all; `say` is told each line. Raises DeviceError: out of memory, throttled, no compiler."""
    from emulator.satellites.calibrate.device import describe, prepare, versions

    prepare(request.device, request.threads)
    about = describe(request.device)
    variants = []
    with Watch(about.gpu) as watch:
        for way in request.ways:
            variants.append(_variant(request, way, say))
    throttled = watch.require_unthrottled()
    limit = watch.span("power.limit")
    device = Device(
        kind=request.device, name=about.name or describe_machine()["cpu"], memory_bytes=about.memory_bytes,
        threads=request.threads if request.device == "cpu" else None,
        driver=watch.looks[0].driver if watch.looks else "", throttled=throttled,
        sm_clock_mhz=watch.span("clocks.sm"), memory_clock_mhz=watch.span("clocks.mem"),
        power_watts=watch.span("power.draw"), power_limit_watts=limit[1] if limit else None,
        temperature_celsius=watch.span("temperature.gpu"), power_capped_share=watch.capped_share(),
    )  # fmt: skip
    machine = {"kernel": platform.release(), "feedrate": describe_machine()["feedrate"]}
    return Profile(
        schema=SCHEMA, provenance="measured", model=request.model.name, patch=request.model.patch,
        created=utc_now(), command=request.command, default=fastest(variants), device=device,
        versions={**versions(), **machine}, variants=tuple(variants),
    )  # fmt: skip


def fastest(variants: Sequence[Variant]) -> str:
    """Name of the variant that takes the least time per sample at the largest batch size."""

    def per_sample(variant: Variant) -> float:
        last = variant.timings[-1]
        return last.mean / last.batch_size

    return min(variants, key=per_sample).name


def _variant(request: Request, way: Way, say: Callable[[str], None]) -> Variant:
    timings = []
    for size in sorted(set(request.sizes)):
        timing = measure(request, way, size)
        timings.append(timing)
        say(
            f"{way.name:30} batch {size:3d}   {show_seconds(timing.mean):>8} "
            f"+- {show_seconds(timing.sd / math.sqrt(timing.steps))}   lag-1 {timing.lag1:+.2f}   "
            f"copy {show_seconds(timing.copy_seconds)}"
        )
    line = fit_line([one.batch_size for one in timings], [one.mean for one in timings], student_t)
    if line is None:
        return Variant(
            name=way.name, precision=way.precision, compiled=way.compiled, layout=way.layout,
            timings=tuple(timings),
        )  # fmt: skip
    say(
        f"{way.name:30} t(B) = {show_seconds(line.t0)}{_about(line.t0_interval)} + B x "
        f"{show_seconds(line.t1)}{_about(line.t1_interval)}; off by {100 * line.worst_residual:.1f} % at most"
    )
    return Variant(
        name=way.name, precision=way.precision, compiled=way.compiled, layout=way.layout, t0=line.t0,
        t1=line.t1, t0_interval=line.t0_interval, t1_interval=line.t1_interval,
        worst_residual=line.worst_residual, timings=tuple(timings),
    )  # fmt: skip


def _about(interval: tuple[float, float] | None) -> str:
    return f" ({1e3 * interval[0]:.3g} to {1e3 * interval[1]:.3g} ms)" if interval else ""


def measure(request: Request, way: Way, size: int) -> Timing:
    """Steps and copies at one batch size. Raises DeviceError."""
    from emulator.satellites.calibrate import trainer as real

    with real.device_errors(f"at batch size {size}, {way.name}"):
        real.forget()
        trainer = real.Trainer(request.model, request.device, way)
        batch = real.made_up_batch(request.model, size)
        seconds = real.time_steps(trainer, batch, request.steps, request.warmup)
        copies = real.time_copies(trainer, batch)
        copied = sum(part.numel() * part.element_size() for part in batch) if copies else 0
    return timing_of(size, seconds, request.warmup, copies, copied)


def write_profile(path: Path, profile: Profile) -> None:
    """`profile` at `path`: whole, or not at all. Raises StorageError."""
    write_whole(path, profile_text(profile))
