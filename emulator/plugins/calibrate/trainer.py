"""Real training steps: a 3D U-Net, its loss and its optimiser on one device. Imports PyTorch.

The network is that of the MLPerf Training reference, implemented from the published description:
channels 32, 64, 128, 256, 320, then a bottleneck of 320; every level is two convolutions of 3 voxels,
each with instance norm (affine) and ReLU; down by stride 2, up by transposed convolutions of 2 voxels,
skips concatenated; three classes. The loss is the mean of Dice loss (without background) and cross
entropy. Fewer `filters` make it small enough for a CPU.
"""

from __future__ import annotations

import math
import platform
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.benchmark import Timer

from emulator.errors import DeviceError
from emulator.plugins.calibrate.models import ComputeMode, DeviceKind, Model

CLASSES = 3


def _convolved(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv3d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.InstanceNorm3d(outputs, affine=True), nn.ReLU())


def _level(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(_convolved(inputs, outputs, stride), _convolved(outputs, outputs))


class _Up(nn.Module):
    """A level of the decoder: doubles the resolution, and joins the encoder's output at it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.grow = nn.ConvTranspose3d(inputs, outputs, 2, stride=2)
        self.level = _level(2 * outputs, outputs)

    def forward(self, deep: Tensor, skip: Tensor) -> Tensor:
        joined: Tensor = self.level(torch.cat((self.grow(deep), skip), dim=1))
        return joined


class Unet3D(nn.Module):
    """A 3D U-Net from images (batch, 1, depth, height, width) to class scores of the same size.

    Edges must be multiples of 2 to the power of len(filters).
    """

    def __init__(self, filters: Sequence[int]) -> None:
        super().__init__()
        self.enter = _level(1, filters[0])
        downs = [_level(a, b, stride=2) for a, b in pairwise(filters)]
        self.downs = nn.ModuleList([*downs, _level(filters[-1], filters[-1], stride=2)])
        wide = [filters[-1], *reversed(filters)]
        self.ups = nn.ModuleList([_Up(a, b) for a, b in pairwise(wide)])
        self.score = nn.Conv3d(filters[0], CLASSES, 1)

    def forward(self, image: Tensor) -> Tensor:
        levels = [self.enter(image)]
        for down in self.downs:
            levels.append(down(levels[-1]))
        deep = levels.pop()
        for up in self.ups:
            deep = up(deep, levels.pop())
        scores: Tensor = self.score(deep)
        return scores


def dice_and_cross_entropy(scores: Tensor, label: Tensor) -> Tensor:
    """Return the mean of Dice loss and cross entropy; `label`: integers (batch, 1, depth, height, width)."""
    target = label.squeeze(1).long()
    entropy = functional.cross_entropy(scores, target)
    share = torch.softmax(scores, dim=1)[:, 1:]
    truth = functional.one_hot(target, CLASSES).permute(0, 4, 1, 2, 3)[:, 1:].float()
    voxels = (2, 3, 4)
    common = (share * truth).sum(voxels)
    dice = (2 * common + 1e-6) / (truth.sum(voxels) + share.sum(voxels) + 1e-6)
    return ((1 - dice).mean() + entropy) / 2


class _Forward(nn.Module):
    """Network and loss in one module, so that torch.compile compiles both."""

    def __init__(self, network: nn.Module, device: DeviceKind, autocast: torch.dtype | None) -> None:
        super().__init__()
        self.network = network
        self._device = device
        self._autocast = autocast

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        with torch.autocast(self._device, dtype=self._autocast, enabled=self._autocast is not None):
            return dice_and_cross_entropy(self.network(image), label)


_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
LEARNING_RATE = 1e-3
"""Far below the reference's, so that no loss diverges; the time of a step does not depend on it."""


@contextmanager
def device_errors(doing: str) -> Iterator[None]:
    """Turn PyTorch's errors in the body into a DeviceError of one line."""
    try:
        yield
    except MemoryError:
        raise DeviceError(f"out of memory {doing}", "use a smaller --batch") from None
    except RuntimeError as error:  # base class of torch's errors: out of memory, CUDA, compiler
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        if any(sign in str(error).lower() for sign in _NO_MEMORY):
            raise DeviceError(f"out of memory {doing}", "use a smaller --batch") from None
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise DeviceError(f"torch.compile failed {doing}: {reason}", "use --compile off") from None
        raise DeviceError(f"PyTorch failed {doing}: {reason}") from None


class Trainer:
    """One model in training on one device."""

    def __init__(self, model: Model, device: DeviceKind, mode: ComputeMode) -> None:
        self.device = device
        torch.manual_seed(0)
        if device == "cuda":
            torch.backends.cudnn.benchmark = True  # as the reference job does; the warm-up covers its search
            torch.backends.cudnn.allow_tf32 = mode.precision != "fp32"
            torch.backends.cuda.matmul.allow_tf32 = mode.precision != "fp32"
        network = Unet3D(model.filters).to(device=device, memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
        optimiser = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=0.9, nesterov=True)
        self._optimiser: torch.optim.Optimizer = optimiser
        forward = _Forward(network, device, _AUTOCAST.get(mode.precision))
        # The compiler's advice to PyTorch's developers, several lines for each batch size.
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\._inductor")
        self._compute = torch.compile(forward, dynamic=False) if mode.compiled else forward
        self._scaler = torch.amp.GradScaler(device, enabled=mode.precision == "fp16")

    def put(self, image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        """Put a batch on the device as a job does; the copy may still be under way."""
        placed = image.to(self.device, memory_format=torch.channels_last_3d)
        return placed, label.to(self.device)

    def step(self, image: Tensor, label: Tensor) -> float:
        """Compute a step on a batch that is on the device, and return its loss.

        Reading the loss waits for the device, as the reference job does after each step.
        """
        self._optimiser.zero_grad(set_to_none=True)
        loss: Tensor = self._compute(image, label)
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self._scaler.step(self._optimiser)
        self._scaler.update()
        return float(loss.item())


def made_up_batch(model: Model, batch_size: int) -> tuple[Tensor, Tensor]:
    """Make a batch in host memory with the loader's shapes and types; the values do not matter."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch_size, 1, *model.patch)
    image = torch.randn(shape, generator=generator)
    label = torch.randint(0, CLASSES, shape, generator=generator, dtype=torch.uint8)
    return image, label


def time_steps(trainer: Trainer, batch: tuple[Tensor, Tensor], steps: int, warmup: int) -> list[float]:
    """Return the seconds of `steps` steps, after `warmup` ones, on one batch that stays on the device.

    CUDA steps are timed with device events, CPU steps with the clock. Raises DeviceError if the loss is NaN.
    """
    image, label = trainer.put(*batch)
    for _ in range(warmup):
        trainer.step(image, label)
    timed = _on_device if trainer.device == "cuda" else _on_clock
    seconds = [timed(trainer, image, label) for _ in range(steps)]
    # Such steps are shorter: by a fifth in bf16 on a CPU; in fp16 GradScaler skips the update.
    if not math.isfinite(trainer.step(image, label)):
        raise DeviceError("the training diverged: its steps are no measure", "use another --precision")
    return seconds


def _on_clock(trainer: Trainer, image: Tensor, label: Tensor) -> float:
    begin = time.perf_counter()
    trainer.step(image, label)
    return time.perf_counter() - begin


def _on_device(trainer: Trainer, image: Tensor, label: Tensor) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    trainer.step(image, label)  # it reads the loss, which is part of the step
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def copy_seconds(trainer: Trainer, batch: tuple[Tensor, Tensor]) -> float:
    """Return the median seconds of a copy of `batch` to the device; 0 on a CPU, which needs none."""
    if trainer.device == "cpu":
        return 0.0
    timer = Timer("trainer.put(*batch)", globals={"trainer": trainer, "batch": batch})  # it synchronises
    return float(timer.blocked_autorange(min_run_time=0.5).median)


def forget() -> None:
    """Free the memory that compiled variants and earlier batches hold on the device."""
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def nvml_name(device: DeviceKind) -> str | None:
    """Return the GPU's UUID, which does not depend on CUDA_VISIBLE_DEVICES, or its index; None for a CPU."""
    if device == "cpu":
        return None
    index = torch.cuda.current_device()
    uuid = str(getattr(torch.cuda.get_device_properties(index), "uuid", ""))
    return f"GPU-{uuid.removeprefix('GPU-')}" if uuid else str(index)


def versions() -> dict[str, str]:
    result = {"python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda:
        result["cuda"] = torch.version.cuda
        result["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    if torch.version.hip:
        result["hip"] = torch.version.hip
    return result
