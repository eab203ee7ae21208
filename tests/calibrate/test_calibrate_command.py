"""The command as a person runs it: a profile that workloads use, and no profile when something is wrong."""

from pathlib import Path

import pytest
import torch
from command import feedrate

from emulator.config.profile import load_profile
from emulator.config.workload import load_workload
from emulator.record.steps import read_steps

FEW = ("--model", "unet3d-tiny", "--device", "cpu", "--steps", 8, "--warmup", 1)


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("profile") / "cpu.toml"
    done = feedrate("calibrate", *FEW, "--batch", "2,4", "--out", path)
    assert done.status == 0, done.err
    return path, done.out


def test_a_profile_says_how_it_was_measured(measured):
    path, out = measured
    profile = load_profile(path)
    assert (profile.model, profile.patch) == ("unet3d-tiny", (32, 32, 32))
    assert (profile.device.kind, profile.device.threads) == ("cpu", 1)
    assert profile.device.name
    assert profile.versions["torch"] == torch.__version__
    assert "feedrate calibrate --model unet3d-tiny" in profile.command
    (variant,) = profile.variants
    assert [timing.batch_size for timing in variant.timings] == [2, 4]
    assert all((timing.steps, timing.warmup) == (8, 1) for timing in variant.timings)
    assert "t(B) = " in out
    assert "few steps: a reliable profile needs" in out


def test_a_workload_names_it(measured):
    path, _ = measured
    variant = load_profile(path).variants[0]
    settings = [f"accelerator={path}", "accelerator.compute=empirical"]
    spec = load_workload("unet3d-tiny", settings).accelerator
    assert spec.step_seconds == pytest.approx(variant.timing(4).mean)
    assert spec.quantiles == variant.timing(4).quantiles


def test_a_run_replays_it(measured, tiny, tmp_path):
    path, _ = measured
    words = ("-w", "unet3d-tiny", "--loader", "direct", "--steps", 5, "-n", 1, "--out", tmp_path / "out")
    settings = ("--set", f"accelerator={path}", "--set", "accelerator.compute=empirical")
    done = feedrate("run", tiny, *words, *settings)
    assert done.status == 0, done.err
    drawn = read_steps(tmp_path / "out")["compute"]
    times = load_profile(path).variants[0].timing(4).quantiles
    assert len(set(drawn)) > 1
    assert all(min(abs(seconds - time) for time in times) < 1e-9 for seconds in drawn)


def test_a_profile_is_not_overwritten(measured):
    path, _ = measured
    before = path.read_bytes()
    done = feedrate("calibrate", *FEW, "--out", path)
    assert done.status == 2
    assert "exists already: choose another --out, or add --force" in done.one_line()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("--model", "resnet"), 2, "--model 'resnet' is not known"),
        (("--batch", "1,x"), 2, "not a list of batch sizes"),
        (("--precision", "fp8"), 2, "--precision 'fp8' is not known"),
        (("--precision", "tf32"), 2, "tf32 is for NVIDIA GPUs"),
        (("--out", "nowhere/x.toml"), 4, "nowhere/x.toml: No such file or directory"),
    ],
)
def test_wrong_options_are_one_line(tmp_path, options, status, said):
    done = feedrate("calibrate", *FEW, *options, cwd=tmp_path)
    assert (done.status, said in done.one_line()) == (status, True), done.err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(tmp_path):
    done = feedrate("calibrate", "--device", "cuda", cwd=tmp_path)
    assert done.status == 8
    assert "sees no GPU" in done.one_line()
    assert not list(tmp_path.iterdir())


def test_without_torch(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    work = tmp_path / "work"
    work.mkdir()
    done = feedrate("calibrate", cwd=work, PYTHONPATH=str(tmp_path))
    assert done.status == 7
    assert "calibrate needs PyTorch: pip install 'feedrate[torch]'" in done.one_line()
    assert not list(work.iterdir())
