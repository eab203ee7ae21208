"""Models that can be calibrated. Light: imports no PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from emulator.config.profile import Layout, Precision, Timing
from emulator.errors import DeviceError, MissingError, SpecError

DeviceKind = Literal["cuda", "cpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A 3D U-Net."""

    name: str
    filters: tuple[int, ...]
    """Channels of its levels, the bottleneck left out."""
    edge: int
    """Voxels along each edge of the cubic patch that it is trained on."""

    @property
    def patch(self) -> tuple[int, int, int]:
        return (self.edge, self.edge, self.edge)


MODELS: Mapping[str, Model] = {
    model.name: model
    for model in (
        Model(name="unet3d", filters=(32, 64, 128, 256, 320), edge=128),
        Model(name="unet3d-tiny", filters=(2, 4), edge=32),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way of computing a step."""

    precision: Precision
    compiled: bool
    layout: Layout

    @property
    def name(self) -> str:
        """For example bf16-compiled-channels_last."""
        return f"{self.precision}-{'compiled' if self.compiled else 'eager'}-{self.layout}"


def model_named(name: str) -> Model:
    """The model of that name. Raises SpecError."""
    if name not in MODELS:
        raise SpecError(f"--model {name!r} is not known", "use " + " or ".join(MODELS))
    return MODELS[name]


def choose_device(wanted: str) -> DeviceKind:
    """auto, cpu or cuda -> where to compute. Raises SpecError, MissingError, DeviceError."""
    if wanted not in ("auto", "cpu", "cuda"):
        raise SpecError(f"--device {wanted!r} is not known", "use auto, cpu or cuda")
    if not _has_torch():
        raise MissingError("calibrate needs PyTorch", "pip install 'feedrate[torch]'")
    if wanted == "cpu":
        return "cpu"  # without the seconds that importing it takes: the other options may be wrong
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda":
        built = "" if torch.version.cuda or torch.version.hip else f" (torch {torch.__version__})"
        raise DeviceError(
            f"--device cuda: PyTorch{built} sees no GPU",
            "look at nvidia-smi and at torch.cuda.is_available(), or use --device cpu",
        )
    return "cpu"


def _has_torch() -> bool:
    try:
        return find_spec("torch") is not None
    except ValueError:  # importlib's word for a module that was made impossible to import
        return False


# ---- From measured seconds to what a profile keeps of them. Pure.


KEPT = 200
"""Parts that the sorted times are kept in, at most."""

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """t(B) = t0 + B t1, by least squares over the batch sizes."""

    t0: float
    t1: float
    t0_interval: Interval | None
    """95 %, Student's t; None for two sizes, which leave no freedom."""
    t1_interval: Interval | None
    worst_residual: float
    """Largest |t(B) - mean| / mean."""


def fit_line(
    sizes: Sequence[int], seconds: Sequence[float], student_t: Callable[[float, int], float]
) -> Line | None:
    """The line through mean seconds of a step by batch size; None for fewer than two sizes.

    `student_t(level, freedom)` is the two-sided quantile. The intervals come from how far the means are
    from a line, which is what counts between batch sizes; the means themselves are known far better.
    """
    if len(sizes) < 2:
        return None
    design = np.column_stack([np.ones(len(sizes)), np.asarray(sizes, dtype=np.float64)])
    mean = np.asarray(seconds, dtype=np.float64)
    (t0, t1), *_ = np.linalg.lstsq(design, mean, rcond=None)
    residual = mean - design @ (t0, t1)
    freedom = len(sizes) - 2
    intervals: list[Interval | None] = [None, None]
    if freedom:
        variance = float(residual @ residual) / freedom * np.linalg.inv(design.T @ design)
        reach = student_t(0.95, freedom) * np.sqrt(np.maximum(0.0, np.diag(variance)))
        intervals = [
            (float(value - half), float(value + half)) for value, half in zip((t0, t1), reach, strict=True)
        ]
    return Line(
        t0=float(t0), t1=float(t1), t0_interval=intervals[0], t1_interval=intervals[1],
        worst_residual=float(np.max(np.abs(residual) / mean)),
    )  # fmt: skip


def timing_of(
    batch_size: int, seconds: Sequence[float], warmup: int, copies: Sequence[float], copy_bytes: int
) -> Timing:
    """What a profile keeps of the steps at one batch size."""
    times = np.asarray(seconds, dtype=np.float64)
    return Timing(
        batch_size=batch_size, steps=len(times), warmup=warmup, mean=float(times.mean()),
        sd=float(times.std(ddof=1)), lag1=lag1(times), copy_bytes=copy_bytes,
        copy_seconds=float(np.median(copies)) if len(copies) else 0.0,
        quantiles=tuple(parts(times, min(KEPT, len(times))).tolist()),
    )  # fmt: skip


def parts(times: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """The sorted times in `count` equal parts, the mean of each: their mean is exactly that of the times."""
    total = np.concatenate([[0.0], np.cumsum(np.sort(times))])
    edges = np.interp(np.linspace(0, len(times), count + 1), np.arange(len(total)), total)
    means: NDArray[np.float64] = np.maximum.accumulate(np.diff(edges) * (count / len(times)))
    return means


def lag1(times: NDArray[np.float64]) -> float:
    """Autocorrelation of successive times; 0 when they do not differ."""
    off = times - times.mean()
    power = float(off @ off)
    return float(off[1:] @ off[:-1]) / power if power > 0 else 0.0
