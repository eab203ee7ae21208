"""The state of a device: what NVML answers, old drivers and new, and what is refused."""

import sys
import time
from pathlib import Path

import pynvml
import pytest

from emulator.errors import DeviceError
from emulator.plugins.calibrate.health import Gpu, HealthMonitor, cpu_throttles

NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


class FakeLibrary:
    """libnvidia-ml.so of one GPU, as the real binding calls it: answers go through pointers, 0 is success."""

    def __init__(self, **answers: int) -> None:
        """`answers`: function of the C library -> its answer, in the units of the C library."""
        self.asked: list[bytes] = []
        for name, answer in answers.items():
            setattr(self, f"nvmlDeviceGet{name}", self.answering(answer))

    def answering(self, answer: int):
        def function(*arguments) -> int:
            if answer == -NOT_SUPPORTED:
                return NOT_SUPPORTED
            arguments[-1]._obj.value = answer
            return 0

        return function

    def nvmlInitWithFlags(self, flags: int) -> int:  # noqa: N802
        return 0

    def nvmlSystemGetDriverVersion(self, version, length) -> int:  # noqa: N802
        version.value = b"550.54.15"
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid, device) -> int:  # noqa: N802
        self.asked.append(uuid.value)
        return 0 if uuid.value.startswith(b"GPU-") else pynvml.NVML_ERROR_NOT_FOUND

    def nvmlDeviceGetHandleByIndex_v2(self, index, device) -> int:  # noqa: N802
        self.asked.append(b"%d" % index.value)
        return 0 if index.value == 0 else pynvml.NVML_ERROR_INVALID_ARGUMENT

    def nvmlDeviceGetClockInfo(self, gpu, kind, clock) -> int:  # noqa: N802
        clock._obj.value = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}[kind.value]
        return 0


ANSWERS = {
    "PowerUsage": 512_300,
    "PowerManagementLimit": 700_000,
    "Temperature": 61,
    "CurrentClocksEventReasons": 0x04,
}


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch):
    """Puts a library of that GPU under the real binding."""

    def make(**answers: int) -> FakeLibrary:
        library = FakeLibrary(**answers)
        monkeypatch.setattr(pynvml, "nvmlLib", library)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return library

    return make


@pytest.mark.parametrize("name", ["GPU-1", "0"])
def test_an_answer_is_understood(nvml, name):
    library = nvml(**ANSWERS)
    gpu = Gpu(name)
    sample = gpu.sample()
    assert (sample.sm_clock_mhz, sample.memory_clock_mhz) == (1980, 2619)
    assert (sample.power_watts, sample.power_limit_watts, sample.temperature_celsius) == (512.3, 700, 61)
    assert (sample.reasons, gpu.driver) == (4, "550.54.15")
    assert library.asked == [name.encode()]


def test_older_drivers_have_another_name_for_the_reasons(nvml):
    answers = dict(ANSWERS)
    answers["CurrentClocksThrottleReasons"] = answers.pop("CurrentClocksEventReasons")
    nvml(**answers)
    assert Gpu("0").sample().reasons == 4


@pytest.mark.parametrize("name", ["1", "MIG-7"])
def test_a_gpu_that_nvml_does_not_know(nvml, name):
    nvml(**ANSWERS)
    with pytest.raises(LookupError):
        Gpu(name)


def test_what_is_not_told_is_none(nvml):
    unknown = -NOT_SUPPORTED
    nvml(**{**ANSWERS, "PowerUsage": unknown, "CurrentClocksEventReasons": unknown})
    sample = Gpu("0").sample()
    assert (sample.power_watts, sample.reasons) == (None, None)
    assert (sample.sm_clock_mhz, sample.power_limit_watts, sample.temperature_celsius) == (1980, 700, 61)


def sampled(period: float = 0.01) -> HealthMonitor:
    with HealthMonitor("0", period=period) as health:
        end = time.monotonic() + 10
        while len(health.samples) < 2 and time.monotonic() < end:
            time.sleep(0.005)
    return health


def test_a_power_cap_is_noted_and_not_refused(nvml):
    nvml(**ANSWERS)
    health = sampled()
    assert health.require_unthrottled() == "no"
    assert health.capped_share() == 1
    assert health.span("power_watts") == (512.3, 512.3)
    assert health.driver == "550.54.15"


@pytest.mark.parametrize(
    ("mask", "said"),
    [(0x08, "hardware slowdown"), (0x24, "software thermal"), (0x40, "hardware thermal"), (0x80, "brake")],
)
def test_a_throttled_gpu_is_refused(nvml, mask, said):
    nvml(**{**ANSWERS, "CurrentClocksEventReasons": mask})
    with pytest.raises(DeviceError, match=f"throttled.*{said}.*no profile was written"):
        sampled().require_unthrottled()


@pytest.mark.parametrize("missing", ["package", "driver"])
def test_without_nvml_throttling_is_unknown(monkeypatch, missing):
    if missing == "package":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    else:
        monkeypatch.setattr(pynvml, "nvmlLib", None)
        monkeypatch.setattr(pynvml, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    with HealthMonitor("0") as health:
        pass
    assert health.require_unthrottled() == "unknown"
    assert health.span("sm_clock_mhz") is None
    assert health.capped_share() is None


def counters(folder: Path, *counts: int) -> None:
    for number, count in enumerate(counts):
        place = folder / f"cpu{number}" / "thermal_throttle"
        place.mkdir(parents=True, exist_ok=True)
        (place / "core_throttle_count").write_text(f"{count}\n")


def test_a_cpu_that_was_throttled_is_refused(tmp_path):
    counters(tmp_path, 3, 4)
    assert cpu_throttles(tmp_path) == 7
    with HealthMonitor(None, tmp_path) as health:
        pass
    assert health.require_unthrottled() == "no"
    with HealthMonitor(None, tmp_path) as health:
        counters(tmp_path, 3, 6)
    with pytest.raises(DeviceError, match="CPU was throttled by heat 2 times"):
        health.require_unthrottled()


def test_a_cpu_without_counters_is_unknown(tmp_path):
    with HealthMonitor(None, tmp_path) as health:
        pass
    assert health.require_unthrottled() == "unknown"
