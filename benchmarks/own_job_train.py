"""Three trainings as people have them, on a CPU: volumes, images, slices of one HDF5 file.

They know no feedrate.

    python own_job_train.py make KIND FOLDER          the data
    python own_job_train.py train KIND FOLDER STEPS   trains; with RANK and WORLD_SIZE as one of several

The last line on stdout is JSON: samples, and seconds between the end of the first step and of the last.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

FILES = {"volumes": 800, "images": 8000, "slices": 1}
BATCH = {"volumes": 2, "images": 16, "slices": 16}
WORKERS = {"volumes": 4, "images": 2, "slices": 2}
SLICES, EACH = 6400, 32768  # 128 KiB of float32 each


def make(kind: str, folder: Path) -> None:
    """Data that do not compress, in files of many sizes."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(7)
    if kind == "slices":
        with h5py.File(folder / "all.h5", "w") as file:
            data = file.create_dataset("x", (SLICES, EACH), "f4")
            for start in range(0, SLICES, 100):
                data[start : start + 100] = rng.standard_normal((100, EACH), np.float32)
            file.create_dataset("y", data=rng.integers(0, 10, SLICES))
        return
    for number in range(FILES[kind]):
        if kind == "volumes":
            edge = int(rng.integers(48, 72))
            x = rng.standard_normal((edge, 64, 64), np.float32)
            np.savez(folder / f"case_{number:04d}.npz", x=x, y=(x > 0).astype(np.uint8))
        else:
            size = int(np.clip(rng.lognormal(11.5, 0.4), 30_000, 400_000))
            (folder / f"{number % 10}").mkdir(exist_ok=True)
            (folder / f"{number % 10}" / f"{number:05d}.jpg").write_bytes(rng.bytes(size))


class Volumes(Dataset):
    """Crops of volumes that are read whole."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.npz"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with np.load(self.files[index]) as case:
            x, y = case["x"], case["y"]
        at = [int(torch.randint(0, edge - 31, ())) for edge in x.shape]
        crop = tuple(slice(start, start + 32) for start in at)
        return torch.from_numpy(x[crop][None].copy()), torch.from_numpy(y[crop].astype(np.int64))


class Images(Dataset):
    """Files of the size of photographs; what a decoder would make of them is the head of the file."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*/*.jpg"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        data = np.frombuffer(self.files[index].read_bytes(), np.uint8)[: 3 * 64 * 64]
        return torch.from_numpy(data.reshape(3, 64, 64).astype(np.float32) / 255), int(
            self.files[index].parent.name
        )


class Slices(Dataset):
    """Random slices of one file, which each worker opens for itself."""

    def __init__(self, folder: Path) -> None:
        self.path, self.file = folder / "all.h5", None

    def __len__(self) -> int:
        return SLICES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.file is None:
            self.file = h5py.File(self.path, "r")
            self.labels = self.file["y"][:]
        return torch.from_numpy(self.file["x"][index]), int(self.labels[index])


def network(kind: str) -> nn.Module:
    if kind == "volumes":
        return nn.Sequential(
            nn.Conv3d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv3d(12, 12, 3, padding=1), nn.ReLU(),
            nn.Conv3d(12, 2, 1),
        )  # fmt: skip
    if kind == "images":
        return nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(24, 24, 3, stride=2, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10),
        )  # fmt: skip
    return nn.Sequential(nn.Linear(EACH, 192), nn.ReLU(), nn.Linear(192, 10))


def train(
    kind: str, folder: Path, steps: int, then: Callable[[int], None] = lambda done: None
) -> list[float]:
    """Train and return the end of each step; `then` is told how many are done."""
    torch.set_num_threads(1)
    seed = int(os.environ.get("SEED", "0"))
    torch.manual_seed(seed)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    dataset: Dataset = {"volumes": Volumes, "images": Images, "slices": Slices}[kind](folder)
    model, sampler = network(kind), None
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        sampler = DistributedSampler(dataset, seed=seed)
    loader = DataLoader(
        dataset,
        BATCH[kind],
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=WORKERS[kind],
        drop_last=True,
    )
    optimizer, loss_of = torch.optim.SGD(model.parameters(), lr=1e-3), nn.CrossEntropyLoss()
    ends = []
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        ends.append(time.monotonic())
        then(number + 1)
        if number + 1 == steps:
            break
    return ends


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], Path(sys.argv[3]))
    else:
        ends = train(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
        samples = (len(ends) - 1) * BATCH[sys.argv[2]]
        print(json.dumps({"samples": samples, "seconds": ends[-1] - ends[0]}), flush=True)
