"""Models, compute modes and devices for calibration, without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from emulator.config.profile import Precision
from emulator.errors import DeviceError, MissingError, SpecError

DeviceKind = Literal["cuda", "cpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A 3D U-Net."""

    name: str
    filters: tuple[int, ...]
    """Channels of its levels, without the bottleneck."""
    edge: int
    """Voxels along each edge of its cubic training patch."""
    batch_sizes: tuple[int, ...] = (1,)
    """Batch sizes to measure without --batch."""

    @property
    def patch(self) -> tuple[int, int, int]:
        return (self.edge, self.edge, self.edge)


MODELS = {
    model.name: model
    for model in (
        Model(name="unet3d", filters=(32, 64, 128, 256, 320), edge=128, batch_sizes=(1, 2, 4, 7, 8)),
        Model(name="unet3d-tiny", filters=(2, 4), edge=32, batch_sizes=(2, 4, 8)),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeMode:
    """A way of computing a step, which is one variant of a profile."""

    precision: Precision
    compiled: bool

    @property
    def name(self) -> str:
        """Name of the variant, such as bf16-compiled-channels_last."""
        return f"{self.precision}-{'compiled' if self.compiled else 'eager'}-channels_last"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A measurement to make."""

    model: Model
    device: DeviceKind
    batch_sizes: tuple[int, ...]
    modes: tuple[ComputeMode, ...]
    steps: int
    warmup: int
    """Number of steps before the measured ones."""
    threads: int = 1
    """Compute threads on a CPU; ranks that share cores have one each."""
    command: str = "feedrate calibrate"


def model_named(name: str) -> Model:
    """Return the model of that name. Raises SpecError."""
    if name not in MODELS:
        raise SpecError(f"--model {name!r} is not known", "use " + " or ".join(MODELS))
    return MODELS[name]


def choose_device(wanted: Literal["auto", "cuda", "cpu"]) -> DeviceKind:
    """Return the device for auto, cpu or cuda. Raises SpecError, MissingError, DeviceError."""
    if find_spec("torch") is None:
        raise MissingError("calibrate needs PyTorch", "pip install 'feedrate[torch]'")
    if wanted == "cpu":
        return "cpu"  # before the import, which takes seconds
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda":
        built = "" if torch.version.cuda or torch.version.hip else f" (torch {torch.__version__})"
        raise DeviceError(
            f"--device cuda: PyTorch{built} sees no GPU",
            "check nvidia-smi and torch.cuda.is_available(), or use --device cpu",
        )
    return "cpu"
