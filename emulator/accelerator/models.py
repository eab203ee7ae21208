"""Models that can be calibrated. Light: imports no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from emulator.errors import DeviceError, MissingError, SpecError
from emulator.spec.profile import Layout, Precision

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
