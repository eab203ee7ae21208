"""What PyTorch knows of the device and of itself. Heavy: imports PyTorch."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

from emulator.satellites.calibrate.models import DeviceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The device that steps are measured on."""

    name: str
    """Product name; empty for a CPU."""
    memory_bytes: int | None
    gpu: str | None
    """How nvidia-smi finds it: its UUID, whatever CUDA_VISIBLE_DEVICES says, or its index. None: a CPU."""


def describe(device: DeviceKind) -> About:
    """The current device of that kind."""
    if device == "cpu":
        return About(name="", memory_bytes=None, gpu=None)
    seen = torch.cuda.get_device_properties(torch.cuda.current_device())
    uuid = str(getattr(seen, "uuid", ""))
    gpu = f"GPU-{uuid.removeprefix('GPU-')}" if uuid else str(torch.cuda.current_device())
    return About(name=seen.name, memory_bytes=seen.total_memory, gpu=gpu)


def prepare(device: DeviceKind, threads: int) -> None:
    """Threads that compute, on a CPU."""
    if device == "cpu":
        torch.set_num_threads(threads)


def versions() -> dict[str, str]:
    """Library -> version."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    if torch.version.hip:
        found["hip"] = torch.version.hip
    return found
