"""The state of a GPU: what NVML answers, and what is refused."""

import sys
import time

import pynvml
import pytest

from emulator.errors import DeviceError
from emulator.plugins.calibrate.health import GpuWatch

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


def sampled(name: str = "0") -> GpuWatch:
    with GpuWatch(name, period=0.01) as watch:
        end = time.monotonic() + 10
        while len(watch.samples) < 2 and time.monotonic() < end:
            time.sleep(0.005)
    return watch


@pytest.mark.parametrize("name", ["GPU-1", "0"])
def test_an_answer_is_understood(nvml, name):
    library = nvml(**ANSWERS)
    watch = sampled(name)
    assert watch.samples[0] == {
        "sm_clock_mhz": 1980, "memory_clock_mhz": 2619, "power_watts": 512.3, "power_limit_watts": 700,
        "temperature_celsius": 61, "reasons": 4,
    }  # fmt: skip
    assert watch.driver == "550.54.15"
    assert library.asked == [name.encode()]


def test_what_is_not_answered_is_left_out(nvml):
    nvml(**{**ANSWERS, "PowerUsage": -NOT_SUPPORTED, "CurrentClocksEventReasons": -NOT_SUPPORTED})
    watch = sampled()
    assert watch.span("power_watts") is None and watch.capped_share() is None
    assert watch.span("power_limit_watts") == (700, 700)


def test_a_power_cap_is_noted_and_not_refused(nvml):
    nvml(**ANSWERS)
    watch = sampled()
    assert watch.require_unthrottled() == "no"
    assert watch.capped_share() == 1


@pytest.mark.parametrize(
    ("mask", "name"),
    [(0x08, "hardware slowdown"), (0x24, "software thermal"), (0x40, "hardware thermal"), (0x80, "brake")],
)
def test_a_throttled_gpu_is_refused(nvml, mask, name):
    nvml(**{**ANSWERS, "CurrentClocksEventReasons": mask})
    with pytest.raises(DeviceError, match=f"throttled.*{name}.*no profile was written"):
        sampled().require_unthrottled()


@pytest.mark.parametrize(
    ("missing", "gpu"), [("package", "0"), ("driver", "0"), ("gpu", None), ("gpu", "1"), ("gpu", "MIG-7")]
)
def test_without_nvml_or_a_gpu_that_it_knows_throttling_is_unknown(nvml, monkeypatch, missing, gpu):
    nvml(**ANSWERS)
    if missing == "package":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    elif missing == "driver":
        monkeypatch.setattr(pynvml, "nvmlLib", None)
        monkeypatch.setattr(pynvml, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    with GpuWatch(gpu, period=0.01) as watch:
        time.sleep(0.02)
    assert watch.require_unthrottled() == "unknown"
    assert watch.samples == [] and watch.span("sm_clock_mhz") is None
