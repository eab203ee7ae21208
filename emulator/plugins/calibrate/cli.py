"""`feedrate calibrate`: measure the time of a step on the accelerator of this host."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal, cast, get_args

import typer

from emulator import live
from emulator.cli import options
from emulator.config.profile import Precision, profile_text
from emulator.config.reader import to_plain
from emulator.errors import SpecError
from emulator.files import refuse_existing
from emulator.plugins.calibrate.models import ComputeMode, DeviceKind, Request, choose_device, model_named
from emulator.record.out import require_output, write_output
from emulator.units import parse_list

PRECISIONS = {"cuda": ["bf16", "fp16", "tf32"], "cpu": ["fp32"]}
"""Precisions to measure without --precision."""
ENOUGH_STEPS, ENOUGH_WARMUP = 200, 20
"""Fewest steps and warm-up steps of a reliable profile."""

ModelName = Annotated[str, typer.Option("--model", "-m", help="unet3d, or unet3d-tiny for a CPU.")]
Batch = Annotated[str | None, typer.Option("--batch", help="Batch sizes, such as 1,2,4,7,8.")]
Precisions = Annotated[str | None, typer.Option("--precision", help="One or more of bf16, fp16, tf32, fp32.")]
DeviceName = Annotated[
    Literal["auto", "cuda", "cpu"],
    typer.Option("--device", metavar="DEVICE", help="auto, cuda or cpu; auto: a GPU if there is one."),
]
Profile = Annotated[Path | None, typer.Option("--out", help="Profile to write; default MODEL-DEVICE.toml.")]
Steps = Annotated[int, typer.Option(min=2, help="Number of measured steps.")]
Warmup = Annotated[int, typer.Option(min=1, help="Number of steps before the measured ones.")]
Compile = Annotated[
    Literal["both", "on", "off"] | None,
    typer.Option(
        "--compile", metavar="HOW", help="torch.compile: both, on or off; default both, on a CPU off."
    ),
]
Threads = Annotated[int, typer.Option(min=1, help="Compute threads, on a CPU.")]


def calibrate(
    model: ModelName = "unet3d",
    batch: Batch = None,
    precision: Precisions = None,
    device: DeviceName = "auto",
    out: Profile = None,
    steps: Steps = ENOUGH_STEPS,
    warmup: Warmup = ENOUGH_WARMUP,
    compiled: Compile = None,
    threads: Threads = 1,
    force: options.Force = False,
) -> None:
    """Measure the time of a training step on this accelerator, as a profile for workloads.

    \b
    Examples:
      feedrate calibrate --out a100.toml
      feedrate calibrate --model unet3d-tiny --device cpu --batch 4
    """
    chosen, kind = model_named(model), choose_device(device)
    out = out or Path(f"{model}-{kind}.toml")
    request = Request(
        model=chosen,
        device=kind,
        batch_sizes=parse_list("--batch", batch, "batch sizes") if batch else chosen.batch_sizes,
        modes=_modes(precision, compiled, kind),
        steps=steps,
        warmup=warmup,
        threads=threads,
        command=shlex.join(options.command_line()),
    )
    refuse_existing(out, force)
    require_output(out)
    # Import PyTorch, which takes seconds, only after all options have been checked.
    from emulator.plugins.calibrate import measure

    profile = measure.calibrate(request)
    write_output(out, profile_text(profile))
    if live.for_programs():
        live.answer({"profile": str(out), **to_plain(profile)})
    if steps < ENOUGH_STEPS or warmup < ENOUGH_WARMUP:
        typer.echo(f"few steps: a reliable profile needs {ENOUGH_STEPS} after {ENOUGH_WARMUP} of warm-up")
    if profile.device.throttled == "unknown":
        typer.echo("throttling: unknown; this system does not report it")
    typer.echo(f'\nprofile: {out}, default {profile.default}   (accelerator = "{out}" in a workload)')


def _modes(precision: str | None, compiled: str | None, kind: DeviceKind) -> tuple[ComputeMode, ...]:
    """Return the ways to compute that --precision and --compile choose. Raises SpecError."""
    usual = "off" if kind == "cpu" else "both"
    choices = {"both": (False, True), "on": (True,), "off": (False,)}[compiled or usual]
    return tuple(
        ComputeMode(precision=name, compiled=on) for name in _precisions(precision, kind) for on in choices
    )


def _precisions(precision: str | None, kind: DeviceKind) -> list[Precision]:
    names = [part.strip() for part in precision.split(",")] if precision else PRECISIONS[kind]
    for name in names:
        if name not in get_args(Precision):
            raise SpecError(f"--precision {name!r} is not known", "use " + ", ".join(get_args(Precision)))
    if "tf32" in names and kind == "cpu":
        raise SpecError("--precision tf32 is for NVIDIA GPUs", "use fp32 or bf16 on a CPU")
    return cast(list[Precision], names)
