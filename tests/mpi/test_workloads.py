"""Published workloads from the first command to a result, at a size for laptops."""

import pytest
from command import feedrate

from emulator.record.store import read_result

pytestmark = pytest.mark.mpi

TINY = {
    "resnet50": ("resnet50-a100", 4, ["samples_per_file=40", "size.bytes_mean=20000"], 10),
}
"""Recipe -> workload, files, settings of the recipe, batch size."""


@pytest.mark.parametrize("recipe", TINY)
def test_from_generate_to_a_verified_run(recipe, tmp_path):
    workload, files, settings, batch_size = TINY[recipe]
    data, out = tmp_path / "data", tmp_path / "out"
    chosen = [word for setting in settings for word in ("--set", setting)]
    done = feedrate("generate", data, "--recipe", recipe, "--files", files, *chosen)
    assert done.status == 0, done.err
    assert "0 faults" in feedrate("verify", data).out
    small = [f"loader.batch_size={batch_size}", f"accelerator.step_batch_size={batch_size}"]
    quick = [word for setting in (*small, "accelerator.step_seconds=0.005") for word in ("--set", setting)]
    done = feedrate(
        "run", data, "--workload", workload, "-n", 2, "--loader", "direct", "--epochs", 1, "--out", out,
        "--verify-reads", *quick,
    )  # fmt: skip
    assert done.status == 0, done.err
    result = read_result(out)
    (point,) = result.points
    assert point.samples == result.dataset["samples"] - point.left_out
    assert point.bytes <= result.dataset["bytes"]
