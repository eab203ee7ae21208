"""Watch a GPU while steps are measured: clocks, power, temperature and throttling, by NVML (nvidia-ml-py)."""

from __future__ import annotations

from contextlib import suppress
from threading import Event, Thread
from typing import Any, Literal

from emulator.errors import DeviceError
from emulator.files import Closing

POWER_CAP = 0x04
"""The power limit lowers the clocks. That is normal in training on many GPUs: recorded, not refused."""
THROTTLED = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of NVML's clocks event reasons that make a measurement invalid."""


class GpuWatch(Closing):
    """Samples a GPU once a second until it is closed. Without NVML, or on a CPU, there are no samples."""

    def __init__(self, gpu: str | None, period: float = 1.0) -> None:
        """Begin to watch the GPU with this UUID or index; None is the CPU."""
        self.samples: list[dict[str, float]] = []
        """Values by the name of a field of config.profile.Device, and `reasons`: NVML's bits."""
        self.driver = ""
        self._period, self._done = period, Event()
        self._thread = Thread(target=self._watch, args=(gpu,), name="gpu-watch", daemon=True)
        if gpu is not None:
            self._thread.start()

    def _watch(self, gpu: str) -> None:
        try:
            import pynvml as nvml
        except ImportError:
            return
        try:
            nvml.nvmlInit()
            find = nvml.nvmlDeviceGetHandleByIndex if gpu.isdecimal() else nvml.nvmlDeviceGetHandleByUUID
            handle = find(int(gpu) if gpu.isdecimal() else gpu)
            self.driver = nvml.nvmlSystemGetDriverVersion()
        except nvml.NVMLError:
            return
        while True:
            self.samples.append(_sample(nvml, handle))
            if self._done.wait(self._period):
                return

    def close(self) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(20.0)  # a driver that does not answer

    def span(self, name: str) -> tuple[float, float] | None:
        """Return the lowest and the highest value, or None without values."""
        values = [sample[name] for sample in self.samples if name in sample]
        return (min(values), max(values)) if values else None

    @property
    def reasons(self) -> list[int]:
        """The reasons for lowered clocks in each sample, as NVML's bits."""
        return [int(sample["reasons"]) for sample in self.samples if "reasons" in sample]

    def capped_share(self) -> float | None:
        """Return the share of samples in which the power limit lowered the clocks."""
        masks = self.reasons
        return sum(bool(mask & POWER_CAP) for mask in masks) / len(masks) if masks else None

    def require_unthrottled(self) -> Literal["no", "unknown"]:
        """Raise DeviceError if the GPU was throttled; return `unknown` if that is not reported."""
        masks = self.reasons
        for bit, name in THROTTLED.items():
            if times := sum(bool(mask & bit) for mask in masks):
                raise DeviceError(
                    f"the GPU was throttled during calibration ({name} in {times} of {len(masks)} samples)",
                    "improve its cooling or power and calibrate again; no profile was written",
                )
        return "no" if masks else "unknown"


def _sample(nvml: Any, gpu: Any) -> dict[str, float]:
    """Return what NVML answers; a GPU or a driver may have no answer to some questions."""
    questions: dict[str, tuple[Any, ...]] = {
        "sm_clock_mhz": (nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": (nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_MEM),
        "power_watts": (nvml.nvmlDeviceGetPowerUsage, gpu),
        "power_limit_watts": (nvml.nvmlDeviceGetPowerManagementLimit, gpu),
        "temperature_celsius": (nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU),
        "reasons": (nvml.nvmlDeviceGetCurrentClocksEventReasons, gpu),
    }
    sample: dict[str, float] = {}
    for name, (question, *arguments) in questions.items():
        with suppress(nvml.NVMLError):
            value = float(question(*arguments))
            sample[name] = value / 1e3 if name.endswith("watts") else value  # NVML has milliwatts
    return sample
