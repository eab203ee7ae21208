"""`feedrate calibrate`: what a step takes on the accelerator that PyTorch sees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emulator.cli import run as options
from emulator.errors import SpecError

if TYPE_CHECKING:
    from emulator.config.storage import StorageSpec
    from emulator.config.workload import LoaderSpec
    from emulator.satellites.calibrate.measure import Request
    from emulator.satellites.calibrate.models import DeviceKind, Model, Way

SIZES = {"unet3d": (1, 2, 4, 7, 8), "unet3d-tiny": (2, 4, 8)}
PRECISIONS = {"cuda": ("bf16", "fp16", "tf32"), "cpu": ("fp32",)}
ENOUGH = (200, 20)
"""Steps and warm-up steps below which a profile is for trying out."""

ModelName = Annotated[str, typer.Option("--model", "-m", help="unet3d, or unet3d-tiny for a CPU.")]
Batch = Annotated[str | None, typer.Option("--batch", help="Batch sizes: 1,2,4,7,8.")]
Precisions = Annotated[str | None, typer.Option("--precision", help="Of bf16, fp16, tf32, fp32.")]
DeviceName = Annotated[str, typer.Option("--device", help="auto, cuda or cpu.")]
Profile = Annotated[Path | None, typer.Option("--out", help="Profile to write; default MODEL-DEVICE.toml.")]
Steps = Annotated[int, typer.Option(min=2, help="Steps that are measured.")]
Warmup = Annotated[int, typer.Option(min=1, help="Steps before them that are not.")]
Compile = Annotated[
    str | None, typer.Option("--compile", help="torch.compile: both, on or off; default both, off on a CPU.")
]
LayoutName = Annotated[str, typer.Option("--layout", help="channels_last, contiguous or both.")]
Threads = Annotated[int, typer.Option(min=1, help="CPU only: threads that compute.")]
Validate = Annotated[
    Path | None, typer.Option("--validate", metavar="DIR", help="Train on that dataset, and emulate it.")
]
Rounds = Annotated[int, typer.Option(min=2, help="With --validate: pairs of real and emulated training.")]
WorkloadName = Annotated[str, typer.Option("--workload", "-w", help="With --validate: loader settings.")]


def calibrate(
    model: ModelName = "unet3d",
    batch: Batch = None,
    precision: Precisions = None,
    device: DeviceName = "auto",
    out: Profile = None,
    steps: Steps = ENOUGH[0],
    warmup: Warmup = ENOUGH[1],
    compiled: Compile = None,
    layout: LayoutName = "channels_last",
    threads: Threads = 1,
    force: options.Force = False,
    validate: Validate = None,
    rounds: Rounds = 6,
    workload: WorkloadName = "unet3d-tiny",
    cache: options.CacheName = "cold",
    storage: options.StorageText = "posix",
    settings: options.Settings = None,
) -> None:
    """Measure the time of a training step on this accelerator, as a profile that workloads can name."""
    import shlex
    import sys

    from emulator.config.storage import parse_storage
    from emulator.satellites.calibrate.measure import Request
    from emulator.satellites.calibrate.models import choose_device, model_named

    if cache not in ("cold", "warm"):
        raise SpecError(f"--cache {cache!r} is not known", "use cold or warm")
    shape = parse_storage(storage, "warm" if cache == "warm" else "cold")
    chosen, kind = model_named(model), choose_device(device)
    request = Request(
        model=chosen, device=kind, sizes=_sizes(batch, chosen), steps=steps, warmup=warmup, threads=threads,
        ways=_ways(precision, compiled, layout, kind), command=shlex.join(["feedrate", *sys.argv[1:]]),
    )  # fmt: skip
    if validate is not None:
        loader = _loader(workload, settings or [], request.sizes if batch else ())
        _validate(request, validate, loader, shape, rounds)
    else:
        _measure(request, out or Path(f"{model}-{kind}.toml"), force)


def _measure(request: Request, out: Path, force: bool) -> None:
    from emulator.satellites.calibrate.measure import calibrate as measure
    from emulator.satellites.calibrate.measure import write_profile

    if out.exists() and not force:
        raise SpecError(f"{out} is there already", "choose another --out, or add --force")
    if not out.parent.is_dir():
        raise SpecError(f"there is no folder {out.parent}", "make it, or choose another --out")
    profile = measure(request, typer.echo)
    write_profile(out, profile)
    if request.steps < ENOUGH[0] or request.warmup < ENOUGH[1]:
        typer.echo(f"few steps: for trying out; {ENOUGH[0]} after {ENOUGH[1]} make a profile to rely on")
    if profile.device.throttled == "unknown":
        typer.echo("throttling: unknown; this system does not tell")
    typer.echo(f'\nprofile: {out}, default {profile.default}   (accelerator = "{out}" in a workload)')


def _loader(workload: str, settings: list[str], sizes: tuple[int, ...]) -> LoaderSpec:
    """The loader of the workload, at the one batch size that --batch gives. Raises SpecError."""
    from emulator.config.catalog import load_loader

    if len(sizes) > 1:
        raise SpecError("--validate trains at one batch size", "--batch gives it, or the workload")
    return load_loader(workload, [*settings, *(f"loader.batch_size={size}" for size in sizes)])


def _validate(request: Request, dataset: Path, loader: LoaderSpec, storage: StorageSpec, rounds: int) -> None:
    from emulator.satellites.calibrate.truth import HEAD, Trial, summary_lines
    from emulator.satellites.calibrate.truth import validate as compare

    way = request.ways[0]
    trial = Trial(dataset=dataset, loader=loader, storage=storage, way=way, rounds=rounds)
    typer.echo(
        f"{request.model.name} on {request.device}, {way.name}, batch size {loader.batch_size}; "
        f"storage {storage}; {rounds} rounds of {request.steps} steps\n{HEAD}"
    )
    for line in ["", *summary_lines(compare(request, trial, typer.echo))]:
        typer.echo(line)


def _sizes(batch: str | None, model: Model) -> tuple[int, ...]:
    if batch is None:
        return SIZES[model.name]
    parts = [part.strip() for part in batch.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise SpecError(f"--batch {batch!r} is not a list of batch sizes", "write it like 1,2,4,7,8")
    return tuple(int(part) for part in parts)


def _ways(precision: str | None, compiled: str | None, layout: str, kind: DeviceKind) -> tuple[Way, ...]:
    from typing import cast, get_args

    from emulator.config.profile import Layout, Precision
    from emulator.satellites.calibrate.models import Way

    known = get_args(Precision)
    names = [part.strip() for part in precision.split(",")] if precision else PRECISIONS[kind]
    for name in names:
        if name not in known:
            raise SpecError(f"--precision {name!r} is not known", "use " + ", ".join(known))
        if name == "tf32" and kind == "cpu":
            raise SpecError("--precision tf32 is for NVIDIA GPUs", "use fp32 or bf16 on a CPU")
    choices = {"both": (False, True), "on": (True,), "off": (False,)}
    wanted = compiled or ("off" if kind == "cpu" else "both")
    if wanted not in choices:
        raise SpecError(f"--compile {wanted!r} is not known", "use both, on or off")
    layouts = get_args(Layout) if layout == "both" else (layout,)
    if not set(layouts) <= set(get_args(Layout)):
        raise SpecError(f"--layout {layout!r} is not known", "use channels_last, contiguous or both")
    return tuple(
        Way(precision=cast(Precision, name), compiled=on, layout=cast(Layout, one))
        for name in names for on in choices[wanted] for one in layouts
    )  # fmt: skip
