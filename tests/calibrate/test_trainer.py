"""The real step: the reference's network, its loss, and what PyTorch's errors become."""

import math
from itertools import pairwise

import pytest
import torch

from emulator.errors import DeviceError
from emulator.plugins.calibrate.models import MODELS, ComputeMode, Model
from emulator.plugins.calibrate.trainer import Trainer, Unet3D, device_errors, made_up_batch, time_steps

SMALL = Model(name="small", filters=(2, 2), edge=8)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def test_the_reference_network_has_its_shape_and_its_weights():
    with torch.device("meta"):
        network = Unet3D(MODELS["unet3d"].filters)
        scores = network(torch.empty(1, 1, 128, 128, 128))
    assert scores.shape == (1, 3, 128, 128, 128)
    assert sum(weights.numel() for weights in network.parameters()) == reference_weights()


def reference_weights() -> int:
    """Weights of the MLPerf Training reference, added up by hand."""
    filters = [32, 64, 128, 256, 320]
    inward = [(1, 32), *pairwise(filters), (320, 320)]
    outward = [(320, 320), (320, 256), (256, 128), (128, 64), (64, 32)]
    norm = 2
    down = sum(27 * a * b + norm * b + 27 * b * b + norm * b for a, b in inward)
    up = sum(8 * a * b + b + 27 * 2 * b * b + norm * b + 27 * b * b + norm * b for a, b in outward)
    return down + up + 32 * 3 + 3


def test_steps_really_train_and_bf16_computes_the_same_less_exactly():
    trainer, rounded = (
        Trainer(SMALL, "cpu", ComputeMode(precision=precision, compiled=False))
        for precision in ("fp32", "bf16")
    )
    image, label = trainer.put(*made_up_batch(SMALL, 2))
    losses = [trainer.step(image, label) for _ in range(30)]
    assert losses[-1] < losses[0]
    # Only the first one: later losses may be NaN, for PyTorch's bf16 gradients on some CPUs are.
    assert 0 < abs(rounded.step(image, label) - losses[0]) < 0.01


def test_a_training_that_diverged_is_no_measure():
    """Its steps are shorter."""
    trainer = Trainer(SMALL, "cpu", ComputeMode(precision="fp32", compiled=False))
    image, label = made_up_batch(SMALL, 2)
    with pytest.raises(DeviceError, match="diverged"):
        time_steps(trainer, (image * math.inf, label), steps=2, warmup=1)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
            "out of memory at batch 8",
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory at batch 8"),
        (MemoryError(), "out of memory at batch 8"),
        (
            RuntimeError("CUDA error: device-side assert\nmore lines"),
            "failed at batch 8: CUDA error: device-side assert$",
        ),
    ],
)
def test_errors_of_the_device_become_one_line(error, said):
    with pytest.raises(DeviceError, match=said), device_errors("at batch 8"):
        raise error
