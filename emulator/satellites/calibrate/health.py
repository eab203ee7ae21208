"""How a device is while it is measured: clocks, power, temperature, throttling. Light: no PyTorch.

A GPU is asked through nvidia-smi, a CPU through the kernel's counters of thermal throttling.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Literal, Self

from emulator.errors import DeviceError

NUMBERS = (
    "clocks.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu",
)  # fmt: skip
"""What is asked of nvidia-smi, in this order, and after it the reasons and the driver's version."""

_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The same mask under its newer and its older name."""
POWER_CAP = 0x04
"""Clocks are held down by the power limit: how many GPUs train normally, so it is noted and not refused."""
THROTTLED = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of the mask (NVML's nvmlClocksEventReasons) with which nothing that is measured holds later."""

CPU_COUNTERS = Path("/sys/devices/system/cpu")
PERIOD = 1.0
"""Seconds between two looks at a GPU."""
_PATIENCE = 20.0
"""Seconds until nvidia-smi is given up."""

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Look:
    """One answer of nvidia-smi. None: it does not tell."""

    numbers: tuple[float | None, ...]
    """As NUMBERS: MHz, MHz, W, W, degrees Celsius."""
    reasons: int | None
    driver: str


def look(gpu: str) -> Look | None:
    """What nvidia-smi says of the GPU with that UUID or index; None without nvidia-smi or an answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    for reasons in _REASONS:
        query = ",".join((*NUMBERS, reasons, "driver_version"))
        words = [program, "-i", gpu, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=_PATIENCE, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        fields = [part.strip() for part in done.stdout.strip().split(",")]
        if done.returncode == 0 and len(fields) == len(NUMBERS) + 2:
            *numbers, mask, driver = fields
            return Look(tuple(map(_number, numbers)), _mask(mask), driver)
    return None


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else None


def _mask(text: str) -> int | None:
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", text) else None


def cpu_throttles(folder: Path = CPU_COUNTERS) -> int | None:
    """Thermal throttling events of all cores so far; None where the kernel does not count them."""
    counts = []
    for path in folder.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        try:
            counts.append(int(path.read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return sum(counts) if counts else None


class Watch:
    """Looks at a device while the body of `with` measures on it. `gpu` None: the CPU."""

    def __init__(self, gpu: str | None, counters: Path = CPU_COUNTERS, period: float = PERIOD) -> None:
        self.gpu = gpu
        self.looks: list[Look] = []
        self._counters = counters
        self._period = period
        self._before: int | None = None
        self._after: int | None = None
        self._done = Event()
        self._thread = Thread(target=self._watch, name="device-watch", daemon=True)

    def __enter__(self) -> Self:
        self._before = cpu_throttles(self._counters)
        if self.gpu is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self.gpu is not None:
            self._thread.join()
        self._after = cpu_throttles(self._counters)

    def _watch(self) -> None:
        assert self.gpu is not None
        while True:
            seen = look(self.gpu)
            if seen is None:
                return
            self.looks.append(seen)
            if self._done.wait(self._period):
                return

    def span(self, name: str) -> Span | None:
        """Least and most of one of NUMBERS over the looks."""
        place = NUMBERS.index(name)
        values = [value for seen in self.looks if (value := seen.numbers[place]) is not None]
        return (min(values), max(values)) if values else None

    def capped_share(self) -> float | None:
        """Share of the looks at which the power limit held the clocks down."""
        masks = self._masks()
        return sum(bool(mask & POWER_CAP) for mask in masks) / len(masks) if masks else None

    def require_unthrottled(self) -> Literal["no", "unknown"]:
        """Raises DeviceError when the device was throttled; `unknown` where the system does not tell."""
        if self.gpu is None:
            return self._cpu()
        masks = self._masks()
        for bit, name in THROTTLED.items():
            times = sum(bool(mask & bit) for mask in masks)
            if times:
                raise DeviceError(
                    f"the GPU was throttled while it was measured ({name} at {times} of {len(masks)} looks)",
                    "cool or power it properly and calibrate again; no profile was written",
                )
        return "no" if masks else "unknown"

    def _masks(self) -> list[int]:
        return [seen.reasons for seen in self.looks if seen.reasons is not None]

    def _cpu(self) -> Literal["no", "unknown"]:
        if self._before is None or self._after is None:
            return "unknown"
        if self._after > self._before:
            raise DeviceError(
                f"the CPU was throttled by heat {self._after - self._before} times while it was measured",
                "cool it and calibrate again; no profile was written",
            )
        return "no"
