"""A profile: how long one accelerator takes for a step of one model, measured by `feedrate calibrate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from emulator.config.reader import at_least, build, positive, read_toml, toml_text
from emulator.errors import SpecError

Precision = Literal["bf16", "fp16", "tf32", "fp32"]
Layout = Literal["channels_last", "contiguous"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Steps at one batch size."""

    batch_size: int
    steps: int
    """Steps that were measured, after the warm-up."""
    warmup: int
    """Steps before them that were left out."""
    mean: float
    """Mean seconds of a step: forward, loss, backward, optimiser; data on the device already."""
    sd: float
    """Sample standard deviation of the seconds of a step."""
    lag1: float
    """Autocorrelation of the seconds of successive steps, -1 to 1. Draws from `quantiles` do not have it."""
    copy_seconds: float
    """Median seconds of copying a batch from host memory to the device; 0 on a CPU. Not in `mean`."""
    quantiles: tuple[float, ...]
    """The step times, sorted and cut into n equal parts: mean seconds of each, ascending. Part i, from 0,
    stands for the probability (i + 1/2) / n. Their mean is `mean`."""

    def __post_init__(self) -> None:
        at_least(1, self, "batch_size")
        at_least(2, self, "steps")
        at_least(0, self, "copy_seconds")
        positive(self, "mean")
        if not self.quantiles or list(self.quantiles) != sorted(self.quantiles) or self.quantiles[0] <= 0:
            raise SpecError("quantiles must be positive and ascending")
        if abs(sum(self.quantiles) / len(self.quantiles) - self.mean) > 1e-4 * self.mean:
            raise SpecError("quantiles do not have the mean that is stated", "calibrate again; do not edit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way of computing: precision, compiled or not, memory layout."""

    name: str
    """A name such as bf16-compiled-channels_last."""
    precision: Precision
    compiled: bool
    """True: through torch.compile."""
    layout: Layout
    """channels_last (torch.channels_last_3d) or contiguous."""
    t0: float | None = None
    """Seconds of a step that do not depend on the batch size B, in t(B) = t0 + B t1. None: one size only."""
    t0_interval: tuple[float, float] | None = None
    """95 % interval of t0; None for fewer than three batch sizes."""
    t1: float | None = None
    """Seconds of a step per sample."""
    t1_interval: tuple[float, float] | None = None
    """95 % interval of t1."""
    worst_residual: float | None = None
    """Largest |t(B) - mean| / mean over the batch sizes: how far from a line the times are."""
    timings: tuple[Timing, ...]
    """Timings in ascending order of batch size."""

    def __post_init__(self) -> None:
        sizes = [timing.batch_size for timing in self.timings]
        if not sizes or sizes != sorted(set(sizes)):
            raise SpecError("timings must have different batch sizes, ascending")

    def timing(self, batch_size: int) -> Timing | None:
        """Return the measurement at that batch size, if there is one."""
        return next((timing for timing in self.timings if timing.batch_size == batch_size), None)

    def step_seconds(self, batch_size: int) -> float:
        """Return the mean seconds of a step, by the fit between measured batch sizes. Raises SpecError."""
        found = self.timing(batch_size)
        if found is not None:
            return found.mean
        sizes = [timing.batch_size for timing in self.timings]
        if self.t0 is None or self.t1 is None or not sizes[0] < batch_size < sizes[-1]:
            raise SpecError(
                f"variant {self.name} was measured at batch sizes {', '.join(map(str, sizes))}, which say "
                f"nothing about {batch_size}",
                f"feedrate calibrate --batch ...,{batch_size}",
            )
        return self.t0 + batch_size * self.t1


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device that was measured, and its state during the measurement. None: the system does not say."""

    kind: Literal["cuda", "cpu"]
    name: str
    threads: int | None = None
    """CPU only: threads that computed."""
    memory_bytes: int | None = None
    driver: str = ""
    sm_clock_mhz: tuple[float, float] | None = None
    """Lowest and highest clock of the multiprocessors, MHz, sampled during the measurement."""
    memory_clock_mhz: tuple[float, float] | None = None
    power_watts: tuple[float, float] | None = None
    """Lowest and highest power drawn."""
    power_limit_watts: float | None = None
    temperature_celsius: tuple[float, float] | None = None
    power_capped_share: float | None = None
    """Share of samples in which the power limit held the clocks down; normal for many GPUs."""
    throttled: Literal["no", "unknown"] = "unknown"
    """no: it was checked. A device that was throttled gets no profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A measured accelerator."""

    model: str
    """Model that was trained, for example unet3d."""
    patch: tuple[int, ...]
    """Voxels of a sample as the model sees it."""
    created: str
    """ISO 8601, UTC."""
    command: str
    default: str
    """Variant that is used unless a workload names another: the fastest per sample."""
    device: Device
    versions: Mapping[str, str] = field(default_factory=dict)
    """Library -> version."""
    variants: tuple[Variant, ...]

    def __post_init__(self) -> None:
        if self.default not in self.names:
            known = ", ".join(self.names)
            raise SpecError(f"default is {self.default!r}, which is no variant", f"known: {known}")

    @property
    def names(self) -> list[str]:
        return [variant.name for variant in self.variants]

    def variant(self, name: str = "") -> Variant:
        """Return the variant of that name, or the default one. Raises SpecError."""
        if name and name not in self.names:
            raise SpecError(f"variant {name!r} is not in the profile", "known: " + ", ".join(self.names))
        return self.variants[self.names.index(name or self.default)]


def load_profile(path: Path) -> Profile:
    """Read the profile in that file. Raises SpecError, StorageError."""
    table, source = read_toml(path)
    return build(Profile, table, source)


def profile_text(profile: Profile) -> str:
    """Return `profile` as TOML with nine digits."""
    head = "# Measured by feedrate calibrate. Do not edit: a profile holds measurements only.\n"
    return head + toml_text(profile, digits=9)
