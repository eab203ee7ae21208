"""One rank of a plain PyTorch training that sleeps instead of computing; nothing of feedrate is in it.

    python plain_training.py REQUEST    # JSON: see `main`; prints JSON: when each step was asked for and over

A DataLoader with worker processes over np.load or h5py and a random crop, or over whole files; a step of
time.sleep; a barrier of gloo.
"""

import json
import random
import sys
import time

import h5py
import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Volumes(Dataset):
    """Crops of volumes in npz files, HDF5 files or pairs of npy files; files of other kinds whole."""

    def __init__(self, paths: list[str], edge: int) -> None:
        self.paths = paths
        self.edge = edge

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        path = self.paths[index]
        if path.endswith(".npz"):
            with np.load(path) as file:
                image, label = file["x"], file["y"]
        elif path.endswith("_x.npy"):
            image, label = np.load(path), np.load(path.removesuffix("_x.npy") + "_y.npy")
        elif path.endswith(".h5"):
            with h5py.File(path, "r") as file:
                image, label = file["x"][...], file["y"][...]
        else:
            with open(path, "rb") as file:  # noqa: PTH123  as torchvision's pil_loader does
                whole = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
            return whole[: self.edge**3].clone(), whole[:1].clone()
        corner = [
            random.randrange(size - self.edge + 1)  # noqa: S311  where a crop begins, no secret
            for size in image.shape[-3:]
        ]
        place = (..., *(slice(begin, begin + self.edge) for begin in corner))
        return torch.from_numpy(image[place].copy()), torch.from_numpy(label[place].copy())


def main() -> None:
    request = json.loads(sys.argv[1])
    rank, ranks, steps = request["rank"], request["ranks"], request["steps"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{request['meet']}", rank=rank, world_size=ranks)
    volumes = Volumes(request["paths"], request["edge"])
    sampler = DistributedSampler(volumes, ranks, rank, shuffle=True, drop_last=True)
    loader = DataLoader(
        volumes,
        batch_size=request["batch"],
        sampler=sampler,
        num_workers=request["workers"],
        prefetch_factor=2,
        drop_last=True,
    )
    # In its first step PyTorch imports modules, which starts a collection of all objects: 0.15 s of CPU.
    # No job of more than a minute notices, so it comes before the first barrier.
    next(iter(DataLoader(range(1), num_workers=1)))
    said, epoch = [], 0
    dist.barrier()
    while len(said) < steps:
        sampler.set_epoch(epoch)
        begin = time.monotonic()
        for step, _ in enumerate(loader):
            got = time.monotonic()
            time.sleep(request["step_seconds"])
            dist.barrier()
            end = time.monotonic()
            said.append((epoch, step, begin, got, end))
            begin = end
            if len(said) == steps:
                break
        epoch += 1
    print(json.dumps(said))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
