"""Watch a device while steps are measured: clocks, power, temperature, throttling.

The sources are NVML (package nvidia-ml-py) for a GPU, and the kernel's counters of thermal throttling for a
CPU. A value that the system does not report is None; throttling is then "unknown".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, Literal, Self

from emulator.errors import DeviceError

POWER_CAP = 0x04
"""The power limit lowers the clocks. That is normal in training on many GPUs: recorded, not refused."""
THROTTLED = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of NVML's clocks event reasons that make a measurement invalid."""

CPU_COUNTERS = Path("/sys/devices/system/cpu")
PERIOD = 1.0
"""Seconds between two samples of a GPU."""
_PATIENCE = 20.0
"""Seconds to wait for a driver that does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """The state of a GPU at one moment."""

    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    power_watts: float | None
    power_limit_watts: float | None
    temperature_celsius: float | None
    reasons: int | None
    """Reasons for lowered clocks, as NVML's bits."""


class Gpu:
    """A GPU in NVML."""

    def __init__(self, name: str) -> None:
        """Open the GPU with this UUID or index. Raises LookupError if there is no NVML or no such GPU."""
        try:
            import pynvml as nvml
        except ImportError:
            raise LookupError("nvidia-ml-py is not installed") from None
        self._nvml: Any = nvml
        try:
            nvml.nvmlInit()
            by_index = name.isdecimal()
            self._handle = (
                nvml.nvmlDeviceGetHandleByIndex(int(name))
                if by_index
                else nvml.nvmlDeviceGetHandleByUUID(name)
            )
        except nvml.NVMLError as error:
            raise LookupError(f"NVML: {error}") from None
        self.driver: str = self._ask(nvml.nvmlSystemGetDriverVersion) or ""

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """Return NVML's answer, or None if this GPU or driver has none."""
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None

    def sample(self) -> GpuSample:
        nvml, gpu = self._nvml, self._handle
        power = self._ask(nvml.nvmlDeviceGetPowerUsage, gpu)
        limit = self._ask(nvml.nvmlDeviceGetPowerManagementLimit, gpu)
        temperature = self._ask(nvml.nvmlDeviceGetTemperatureV, gpu, nvml.NVML_TEMPERATURE_GPU)
        if temperature is None:  # drivers before 570
            temperature = self._ask(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU)
        reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, gpu)
        if reasons is None:  # drivers before 535 have the older name
            reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu)
        return GpuSample(
            sm_clock_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_MEM),
            power_watts=None if power is None else power / 1e3,  # from milliwatts
            power_limit_watts=None if limit is None else limit / 1e3,
            temperature_celsius=temperature,
            reasons=reasons,
        )


def cpu_throttles(folder: Path = CPU_COUNTERS) -> int | None:
    """Return the thermal throttling events of all cores so far; None if the kernel does not count them."""
    counts = []
    for path in folder.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        try:
            counts.append(int(path.read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return sum(counts) if counts else None


class HealthMonitor:
    """Samples a device during its body. `gpu` is a UUID or an index; None for the CPU."""

    def __init__(self, gpu: str | None, counters: Path = CPU_COUNTERS, period: float = PERIOD) -> None:
        self.samples: list[GpuSample] = []
        self.driver = ""
        self._gpu = gpu
        self._counters = counters
        self._period = period
        self._before: int | None = None
        self._after: int | None = None
        self._done = Event()
        self._thread = Thread(target=self._watch, name="device-health", daemon=True)

    def __enter__(self) -> Self:
        if self._gpu is None:
            self._before = cpu_throttles(self._counters)
        else:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._gpu is None:
            self._after = cpu_throttles(self._counters)
        else:
            self._thread.join(_PATIENCE)

    def _watch(self) -> None:
        assert self._gpu is not None
        try:
            gpu = Gpu(self._gpu)
        except LookupError:
            return
        self.driver = gpu.driver
        while True:
            self.samples.append(gpu.sample())
            if self._done.wait(self._period):
                return

    def span(self, name: str) -> tuple[float, float] | None:
        """Return the minimum and maximum of a field of GpuSample, or None without values."""
        values = [value for sample in self.samples if (value := getattr(sample, name)) is not None]
        return (min(values), max(values)) if values else None

    def capped_share(self) -> float | None:
        """Return the share of samples in which the power limit lowered the clocks."""
        masks = self._reasons()
        return sum(bool(mask & POWER_CAP) for mask in masks) / len(masks) if masks else None

    def require_unthrottled(self) -> Literal["no", "unknown"]:
        """Raise DeviceError if the device was throttled; return `unknown` if that is not reported."""
        if self._gpu is None:
            if self._before is None or self._after is None:
                return "unknown"
            if self._after > self._before:
                raise DeviceError(
                    f"the CPU was throttled by heat {self._after - self._before} times while it was measured",
                    "improve its cooling and calibrate again; no profile was written",
                )
            return "no"
        masks = self._reasons()
        for bit, name in THROTTLED.items():
            times = sum(bool(mask & bit) for mask in masks)
            if times:
                raise DeviceError(
                    "the GPU was throttled while it was measured "
                    f"({name} in {times} of {len(masks)} samples)",
                    "improve its cooling or power and calibrate again; no profile was written",
                )
        return "no" if masks else "unknown"

    def _reasons(self) -> list[int]:
        return [sample.reasons for sample in self.samples if sample.reasons is not None]
