"""A real training on a GPU, for `feedrate record`: a small 3D U-Net whose steps CUDA events time.

The commands are in results/gpus.md.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

CUT, BATCH, WIDTH, WORKERS = 64, 4, 24, 4
TRACED = 120
"""First steps, which strace slows down: they are not in the mean that is printed."""


def make(folder: Path, files: int, edge: int) -> None:
    """Write cubes of random bytes, and leave none of them in the page cache."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for number in range(files):
        with (folder / f"{number:05}.npy").open("wb") as file:
            np.save(file, random.integers(0, 255, (edge, edge, edge), np.uint8))
            file.flush()
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Volumes(Dataset[Tensor]):
    """Reads a cube from a file and cuts a smaller one out of it at a random place."""

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.glob("*.npy"))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Tensor:
        volume = np.load(self._files[index])
        z, y, x = np.random.randint(0, len(volume) - CUT + 1, 3)
        cut = np.ascontiguousarray(volume[z : z + CUT, y : y + CUT, x : x + CUT])
        return torch.from_numpy(cut)[None].float() / 255


def level(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(inputs, outputs, 3, stride, 1), nn.InstanceNorm3d(outputs), nn.ReLU(),
        nn.Conv3d(outputs, outputs, 3, 1, 1), nn.InstanceNorm3d(outputs), nn.ReLU(),
    )  # fmt: skip


class Net(nn.Module):
    """A 3D U-Net of three levels."""

    def __init__(self) -> None:
        super().__init__()
        w = WIDTH
        self.a, self.b, self.c = level(1, w), level(w, 2 * w, 2), level(2 * w, 4 * w, 2)
        self.up_b, self.down_b = nn.ConvTranspose3d(4 * w, 2 * w, 2, 2), level(4 * w, 2 * w)
        self.up_a, self.down_a = nn.ConvTranspose3d(2 * w, w, 2, 2), level(2 * w, w)
        self.score = nn.Conv3d(w, 1, 1)

    def forward(self, image: Tensor) -> Any:
        """Return the loss."""
        a = self.a(image)
        b = self.b(a)
        b = self.down_b(torch.cat((self.up_b(self.c(b)), b), 1))
        made = self.score(self.down_a(torch.cat((self.up_a(b), a), 1)))
        return functional.mse_loss(made.float(), image)


def event() -> Any:
    mark: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    mark.record()
    return mark


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--make", type=int, metavar="FILES", help="make the data, and train nothing")
    options.add_argument("--edge", type=int, default=128, help="voxels a side of a cube, with --make")
    options.add_argument("--scaler", action="store_true", help="fp16 with a GradScaler; default bf16")
    options.add_argument("--sync", type=int, default=1, help="read the loss every this many steps")
    options.add_argument("--steps", type=int, default=600)
    chosen = options.parse_args()
    if chosen.make:
        make(chosen.folder, chosen.make, chosen.edge)
        return
    torch.backends.cudnn.benchmark = True
    net = Net().to("cuda")
    optimiser = torch.optim.Adam(net.parameters(), 1e-4)
    scaler = torch.amp.GradScaler("cuda", enabled=chosen.scaler)
    precision = torch.float16 if chosen.scaler else torch.bfloat16

    def train(batch: Tensor) -> tuple[Tensor, Any, Any]:
        image = batch.to("cuda", non_blocking=True)
        begin = event()
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=precision):
            loss = net(image)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimiser)
        scaler.update()
        return loss, begin, event()

    for _ in range(5):  # cudnn's search is not part of training
        train(torch.rand(BATCH, 1, CUT, CUT, CUT))[0].item()
    batches = DataLoader(
        Volumes(chosen.folder), BATCH, shuffle=True, num_workers=WORKERS, drop_last=True, pin_memory=True,
        persistent_workers=True,
    )  # fmt: skip
    events: list[tuple[Any, Any]] = []
    started = time.perf_counter()
    while len(events) < chosen.steps:
        for batch in batches:
            loss, begin, end = train(batch)
            events.append((begin, end))
            if len(events) % chosen.sync == 0:
                loss.item()
            if len(events) == chosen.steps:
                break
    torch.cuda.synchronize()
    rate = chosen.steps * BATCH / (time.perf_counter() - started)
    busy = np.mean([begin.elapsed_time(end) for begin, end in events[TRACED:]])
    apart = events[TRACED - 1][1].elapsed_time(events[-1][1]) / (chosen.steps - TRACED)
    print(f"{rate:.1f} samples/s; the GPU was busy for {busy:.2f} ms a step; steps were {apart:.2f} ms apart")


if __name__ == "__main__":
    main()
