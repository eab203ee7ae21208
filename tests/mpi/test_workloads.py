"""Published workloads from the first command to a result, at a size for laptops."""

import pytest
from command import feedrate

from emulator.record.out import read_result

pytestmark = pytest.mark.mpi

_FEW = 'columns=[{name="t5_encodings", dtype="float32", size=50000}]'
TINY = {
    "resnet50": ("resnet50-a100", 4, ["samples_per_file=40", "size.bytes_mean=100000"], 10),
    "dlrm": ("dlrm-b200", 4, ["samples_per_file=6000", "row_group=500"], 600),
    "cosmoflow": ("cosmoflow-h100", 40, [], 1),
    "bert": ("bert-v100", 3, ["samples_per_file=4000"], 48),
    "retinanet": ("retinanet-mi355", 60, [], 8),
    "flux": ("flux-b200", 16, ["samples_per_file=8", "row_group=4", _FEW], 2),
}
"""Recipe -> workload, files, settings of the recipe, batch size."""
SOON = ("resnet50",)


@pytest.mark.parametrize(
    "recipe", [*SOON, *(pytest.param(name, marks=pytest.mark.long) for name in TINY if name not in SOON)]
)
def test_from_generate_to_a_verified_run(recipe, tmp_path):
    workload, files, settings, batch_size = TINY[recipe]
    data, out = tmp_path / "data", tmp_path / "out"
    chosen = [word for setting in settings for word in ("--set", setting)]
    done = feedrate("generate", data, "--recipe", recipe, "--files", files, *chosen)
    assert done.status == 0, done.err
    assert "0 faults" in feedrate("verify", data).out
    small = [f"loader.batch_size={batch_size}", f"accelerator.step_batch_size={batch_size}"]
    quick = [word for setting in (*small, "accelerator.step_seconds=0.005") for word in ("--set", setting)]
    words = ("run", data, "--workload", workload, "-n", 2, "--loader", "direct", "--epochs", 1, "--out", out)
    done = feedrate(*words, "--mismatched-dataset", *quick)
    assert done.status == 0, done.err
    result = read_result(out)
    (point,) = result.points
    assert point.samples == result.dataset["samples"] - point.left_out
    share = {"dlrm": 160 / 761}.get(recipe, 1.0) * point.samples / result.dataset["samples"]
    assert point.bytes / result.dataset["bytes"] == pytest.approx(share, rel=0.25)
