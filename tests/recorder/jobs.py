"""Training jobs as users have them: `python jobs.py KIND FOLDER [KEY=VALUE...]`. They know no feedrate."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Files(Dataset):
    """A file a sample, read whole or from a random place."""

    def __init__(self, folder: Path, part: int = 0, seconds: float = 0.0) -> None:
        self.files = sorted(folder.glob("*.dat"))
        self.part, self.seconds = part, seconds

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        if not index:  # as tempfile itself does when it looks for a place to write
            with tempfile.NamedTemporaryFile(dir=self.files[0].parent, suffix=".bin", delete=False) as file:
                file.write(b"made")
        time.sleep(self.seconds)
        with self.files[index].open("rb", buffering=0) as file:
            if self.part:
                file.seek(int(torch.randint(0, self.files[index].stat().st_size - self.part, ())))
                return torch.frombuffer(bytearray(file.read(self.part)), dtype=torch.uint8).sum()
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).sum()


class Pairs(Files):
    """A sample is a file and the one behind it."""

    def __len__(self) -> int:
        return len(self.files) // 2

    def __getitem__(self, index: int) -> torch.Tensor:
        return sum(torch.tensor(len(path.read_bytes())) for path in self.files[2 * index : 2 * index + 2])


class Piped(Files):
    """A file a sample, read by a program, which a worker starts by vfork; a batch is one long tensor."""

    def __getitem__(self, index: int) -> torch.Tensor:
        read = subprocess.run(["cat", self.files[index]], capture_output=True, check=True).stdout
        return torch.frombuffer(bytearray(read), dtype=torch.uint8)


class Slices(Dataset):
    """Many samples in one file, each at its place."""

    def __init__(self, folder: Path, each: int) -> None:
        (self.file,) = folder.glob("*.dat")
        self.each = each
        self.opened = None

    def __len__(self) -> int:
        return self.file.stat().st_size // self.each

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.opened is None:
            self.opened = self.file.open("rb", buffering=0)
        self.opened.seek(index * self.each)
        return torch.frombuffer(bytearray(self.opened.read(self.each)), dtype=torch.uint8).sum()


class Crops(Slices):
    """Three chunks of 16 kB, each eight behind the last, at a random place."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.opened is None:
            self.opened = self.file.open("rb", buffering=0)
        first = 16384 * int(torch.randint(0, self.file.stat().st_size // 16384 - 17, ()))
        chunks = (os.pread(self.opened.fileno(), 16384, first + 8 * 16384 * number) for number in range(3))
        return torch.tensor(sum(map(len, chunks)))


class Mapped(Slices):
    """The first eighth of each slice, from a map."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.opened is None:
            with self.file.open("rb") as file:
                self.opened = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        begin = index * self.each
        return torch.frombuffer(
            bytearray(self.opened[begin : begin + self.each // 8]), dtype=torch.uint8
        ).sum()


class Shards(IterableDataset):
    """Files that are read from their start to their end."""

    def __init__(self, folder: Path, each: int) -> None:
        self.files = sorted(folder.glob("*.dat"))
        self.each = each

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        share = self.files[info.id :: info.num_workers] if info else self.files
        for path in share:
            with path.open("rb", buffering=0) as file:
                while len(data := file.read(self.each)) == self.each:
                    yield torch.frombuffer(bytearray(data), dtype=torch.uint8).sum()


def train(loader: DataLoader, step: float, epochs: int = 1, steps: int = 10**9) -> int:
    """So many epochs; a step keeps this process busy for `step` seconds."""
    done = 0
    for _ in range(epochs):
        for _batch in loader:
            end = time.perf_counter() + step
            while time.perf_counter() < end:
                time.sleep(step / 20)
            done += 1
            if done >= steps:
                return done
    return done


class Gpu:
    """Stands in for torch.cuda: a GPU does what was launched in order, and the host does not wait for it."""

    def __init__(self) -> None:
        self.free = 0.0

    def launch(self, seconds: float) -> None:
        self.free = max(self.free, time.perf_counter()) + seconds

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return False

    def current_device(self) -> int:
        return 0

    def get_device_name(self, device: int) -> str:
        return "simulated GPU"

    def Event(self, enable_timing: bool) -> Event:  # noqa: N802  CUDA's name
        return Event(self)


class Event:
    """Stands in for torch.cuda.Event."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def record(self) -> None:
        self.at = max(self.gpu.free, time.perf_counter())

    def query(self) -> bool:
        return time.perf_counter() >= self.at

    def elapsed_time(self, end: Event) -> float:
        assert self.query() and end.query(), "CUDA raises an error for events that have not happened"
        return 1e3 * (end.at - self.at)


def train_on_gpu(loader: DataLoader, step: float) -> int:
    """Launch steps of `step` seconds, and never wait for them."""
    torch.cuda = gpu = Gpu()
    done = 0
    for _batch in loader:
        gpu.launch(step)
        time.sleep(step / 10)  # the host goes on launching
        done += 1
    return done


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    options = {key: json.loads(value) for key, _, value in (word.partition("=") for word in sys.argv[3:])}
    step, epochs, each = options.pop("step", 0.01), options.pop("epochs", 1), options.pop("each", 65536)
    status, steps = options.pop("status", 0), options.pop("steps", 10**9)
    traced = options.pop("traced", False)
    gpu, late = options.pop("gpu", False), options.pop("late", 0.0)
    options = {"batch_size": 4, "num_workers": 2, **options}
    if kind == "none":
        for path in sorted(folder.glob("*.dat")):
            path.read_bytes()
        raise SystemExit(status)
    if kind == "two":
        pairs = [[0, 1], [2, 3], [4, 5]]
        train(DataLoader(Files(folder / "valid"), batch_sampler=pairs, num_workers=1), 0.001)
    makers = {
        "files": lambda: Files(folder, seconds=late), "two": lambda: Files(folder),
        "piped": lambda: Piped(folder), "pairs": lambda: Pairs(folder), "parts": lambda: Files(folder, each),
        "slices": lambda: Slices(folder, each), "crops": lambda: Crops(folder, each),
        "mapped": lambda: Mapped(folder, each), "shards": lambda: Shards(folder, each),
    }  # fmt: skip
    collate = torch.cat if kind == "piped" else None
    loader = DataLoader(makers[kind](), shuffle=kind != "shards", collate_fn=collate, **options)
    if epochs == 1:  # as in `for batch in DataLoader(...)`, which keeps the iterator alone
        loader = iter(loader)
    done = train_on_gpu(loader, step) if gpu else train(loader, step, epochs, steps)
    print("steps", done, flush=True)
    if traced:
        status_file = Path("/proc/self/status").read_text()
        print("tracer", status_file.partition("TracerPid:")[2].split()[0], flush=True)
    if status < 0:
        os.kill(os.getpid(), -status)
    raise SystemExit(status)


if __name__ == "__main__":
    main()
