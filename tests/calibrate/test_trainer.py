"""The real step: the reference's network, its loss, and what PyTorch's errors become."""

from itertools import pairwise

import pytest
import torch

from emulator.errors import DatasetError, DeviceError, SpecError
from emulator.plugins.calibrate.models import MODELS, ComputeMode, Model, choose_device
from emulator.plugins.calibrate.trainer import (
    Trainer,
    Unet3D,
    device_errors,
    dice_and_cross_entropy,
    made_up_batch,
    time_copies,
    time_steps,
)

SMALL = Model(name="small", filters=(2, 2), edge=8)
EAGER = ComputeMode(precision="fp32", compiled=False, layout="channels_last")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def test_the_reference_network_has_its_shape_and_its_weights():
    with torch.device("meta"):
        network = Unet3D(MODELS["unet3d"].filters)
        scores = network(torch.empty(1, 1, 128, 128, 128))
    assert scores.shape == (1, 3, 128, 128, 128)
    assert sum(one.numel() for one in network.parameters()) == reference_weights()


def reference_weights() -> int:
    """Weights of the MLPerf Training reference, added up by hand."""
    filters = [32, 64, 128, 256, 320]
    inward = [(1, 32), *pairwise(filters), (320, 320)]
    outward = [(320, 320), (320, 256), (256, 128), (128, 64), (64, 32)]
    norm = 2
    down = sum(27 * a * b + norm * b + 27 * b * b + norm * b for a, b in inward)
    up = sum(8 * a * b + b + 27 * 2 * b * b + norm * b + 27 * b * b + norm * b for a, b in outward)
    return down + up + 32 * 3 + 3


def test_the_loss_is_none_for_a_sure_and_right_answer_and_large_for_a_wrong_one():
    label = torch.randint(0, 3, (2, 1, 8, 8, 8), generator=torch.Generator().manual_seed(1))
    right = 50.0 * torch.nn.functional.one_hot(label.squeeze(1), 3).permute(0, 4, 1, 2, 3)
    assert float(dice_and_cross_entropy(right, label)) == pytest.approx(0, abs=1e-5)
    assert float(dice_and_cross_entropy(-right, label)) > 10


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_steps_really_train(precision):
    trainer = Trainer(SMALL, "cpu", ComputeMode(precision=precision, compiled=False, layout="contiguous"))
    image, label = trainer.put(*made_up_batch(SMALL, 2))
    losses = [trainer.step(image, label) for _ in range(30)]
    assert losses[-1] < losses[0]


def test_as_many_times_as_asked_for_and_no_copies_on_a_cpu():
    trainer = Trainer(SMALL, "cpu", EAGER)
    batch = made_up_batch(SMALL, 2)
    times = time_steps(trainer, batch, 5, 2)
    assert len(times) == 5
    assert min(times) > 0
    assert time_copies(trainer, batch) == []


def test_samples_that_cannot_be_trained_on_are_refused():
    image, label = made_up_batch(SMALL, 1)
    trainer = Trainer(SMALL, "cpu", EAGER)
    trainer.require_trainable(image, label)
    with pytest.raises(DatasetError, match="labels up to 255.*ct-realistic"):
        trainer.require_trainable(image, torch.full_like(label, 255))
    with pytest.raises(DatasetError, match="no numbers"):
        trainer.require_trainable(torch.full_like(image, float("nan")), label)


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


def test_devices():
    assert choose_device("cpu") == "cpu"
    with pytest.raises(SpecError, match="use auto, cpu or cuda"):
        choose_device("tpu")
