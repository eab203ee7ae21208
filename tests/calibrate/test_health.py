"""Looking at a device: what nvidia-smi answers, in both its dialects, and what is refused."""

import time
from pathlib import Path

import pytest

from emulator.errors import DeviceError
from emulator.satellites.calibrate.health import Watch, cpu_throttles, look

NEW = "1980, 2619, 512.30, 700.00, 61, 0x0000000000000004, 550.54.15"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a program `nvidia-smi` first on PATH that says what it is told to."""

    def make(answer: str, *, refuse: str = "@@", status: int = 0) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(
            f'#!/bin/sh\ncase "$*" in *{refuse}*) echo "not a valid field to query"; exit 2;; esac\n'
            f'echo "$*" >> {tmp_path}/asked\necho "{answer}"\nexit {status}\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return make


def test_an_answer_is_understood(smi, tmp_path):
    smi(NEW)
    seen = look("GPU-1")
    assert seen is not None
    assert seen.numbers == (1980, 2619, 512.30, 700, 61)
    assert (seen.reasons, seen.driver) == (4, "550.54.15")
    assert "-i GPU-1" in (tmp_path / "asked").read_text()


def test_older_drivers_have_another_name_for_the_reasons(smi):
    smi(NEW, refuse="clocks_event_reasons")
    assert look("0").reasons == 4


@pytest.mark.parametrize(("answer", "status"), [("No devices were found", 6), ("", 0), ("1, 2", 0)])
def test_no_answer_is_none(smi, answer, status):
    smi(answer, status=status)
    assert look("0") is None


def test_what_is_not_told_is_none(smi):
    smi("[N/A], 2619, [Not Supported], 700.00, 61, [N/A], 550")
    assert look("0").numbers == (None, 2619, None, 700, 61)
    assert look("0").reasons is None


def watched(period: float = 0.01) -> Watch:
    with Watch("0", period=period) as watch:
        end = time.monotonic() + 10
        while len(watch.looks) < 2 and time.monotonic() < end:
            time.sleep(0.005)
    return watch


def test_a_power_cap_is_noted_and_not_refused(smi):
    smi(NEW)
    watch = watched()
    assert watch.require_unthrottled() == "no"
    assert watch.capped_share() == 1
    assert watch.span("power.draw") == (512.30, 512.30)


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ("0x08", "hardware slowdown"),
        ("0x24", "software thermal"),
        ("0x40", "hardware thermal"),
        ("0x80", "brake"),
    ],
)
def test_a_throttled_gpu_is_refused(smi, mask, said):
    smi(NEW.replace("0x0000000000000004", mask))
    with pytest.raises(DeviceError, match=f"throttled.*{said}.*no profile was written"):
        watched().require_unthrottled()


def test_without_nvidia_smi_throttling_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with Watch("0") as watch:
        pass
    assert watch.require_unthrottled() == "unknown"
    assert watch.span("clocks.sm") is None
    assert watch.capped_share() is None


def counters(folder: Path, *counts: int) -> None:
    for number, count in enumerate(counts):
        place = folder / f"cpu{number}" / "thermal_throttle"
        place.mkdir(parents=True, exist_ok=True)
        (place / "core_throttle_count").write_text(f"{count}\n")


def test_a_cpu_that_was_throttled_is_refused(tmp_path):
    counters(tmp_path, 3, 4)
    assert cpu_throttles(tmp_path) == 7
    with Watch(None, tmp_path) as watch:
        pass
    assert watch.require_unthrottled() == "no"
    with Watch(None, tmp_path) as watch:
        counters(tmp_path, 3, 6)
    with pytest.raises(DeviceError, match="CPU was throttled by heat 2 times"):
        watch.require_unthrottled()


def test_a_cpu_without_counters_is_unknown(tmp_path):
    with Watch(None, tmp_path) as watch:
        pass
    assert watch.require_unthrottled() == "unknown"
