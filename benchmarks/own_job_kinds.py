"""Training jobs in the styles that people use, and their data. They do not know feedrate.

    python own_job_kinds.py make KIND FOLDER            the data
    python own_job_kinds.py train KIND FOLDER STEPS     trains; under torchrun as one of several

volumes, images and slices train small networks on the CPU; the others sleep for STEP seconds. Several
processes average gradients at each step. The last line on stdout is JSON: the samples/s of this process.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

STEP = 0.025
PROCESSES, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
SYNC = 20
"""Steps after which the host of `queue` waits for its accelerator."""
AHEAD = ("queue",)
"""Kinds whose host runs ahead of its accelerator."""
VALIDATED = 40
"""Steps after which `validation` validates."""


# ---- Data.


def arrays(data: Path, files: int = 3200) -> None:
    for number, size in enumerate(np.random.default_rng(1).integers(15_000, 30_000, files)):
        np.save(data / f"{number:05d}.npy", np.random.default_rng(number).random(size, np.float32))


def cases(data: Path) -> None:
    draw = np.random.default_rng(7)
    for number, edge in enumerate(draw.integers(48, 72, 800)):
        x = draw.standard_normal((edge, 64, 64), np.float32)
        np.savez(data / f"case_{number:04d}.npz", x=x, y=(x > 0).astype(np.uint8))


def blobs(data: Path) -> None:
    draw = np.random.default_rng(7)
    for number in range(8000):
        folder = data / f"{number % 10}"
        folder.mkdir(exist_ok=True)
        size = int(np.clip(draw.lognormal(11.5, 0.4), 30_000, 400_000))
        (folder / f"{number:05d}.jpg").write_bytes(draw.bytes(size))


def photos(data: Path) -> None:
    from PIL import Image

    draw = np.random.default_rng(1)
    for number in range(3200):
        folder = data / f"{number % 10}"
        folder.mkdir(exist_ok=True)
        smooth = draw.integers(0, 256, (32, 32, 3), np.uint8).repeat(8, 0).repeat(8, 1)
        noisy = smooth // 2 + draw.integers(0, 128, smooth.shape, np.uint8)
        Image.fromarray(noisy).save(folder / f"{number:05d}.jpg", quality=90)


def tokens(data: Path) -> None:
    np.random.default_rng(1).integers(0, 2**16, 96 * 2**20, np.uint16).tofile(data / "tokens.bin")


def documents(data: Path) -> None:
    """Megatron's: a file of tokens, and one of where each document begins."""
    tokens(data)
    lengths = np.random.default_rng(1).integers(10_000, 50_000, 3000)
    np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64).tofile(data / "tokens.idx")


def arrow(data: Path) -> None:
    import datasets

    rows = np.random.default_rng(1).integers(0, 2**31, (4000, 8192), np.int32)
    datasets.Dataset.from_dict({"x": list(rows)}).save_to_disk(str(data / "set"))


def hdf5(data: Path) -> None:
    import h5py

    with h5py.File(data / "train.h5", "w") as file:
        made = file.create_dataset("x", (5000, 16384), "u2", chunks=(1, 16384))
        for first in range(0, 5000, 500):
            draw = np.random.default_rng(first)
            made[first : first + 500] = draw.integers(0, 2**16, (500, 16384), np.uint16)


def contiguous(data: Path) -> None:
    import h5py

    draw = np.random.default_rng(7)
    with h5py.File(data / "all.h5", "w") as file:
        made = file.create_dataset("x", (6400, 32768), "f4")
        for start in range(0, 6400, 100):
            made[start : start + 100] = draw.standard_normal((100, 32768), np.float32)


def netcdf(data: Path) -> None:
    import xarray

    values = np.random.default_rng(1).random((2000, 128, 256), np.float32)
    made = xarray.Dataset({"t": (("time", "lat", "lon"), values)})
    made.to_netcdf(data / "t.nc", engine="h5netcdf", encoding={"t": {"chunksizes": (1, 128, 256)}})


def volumes(data: Path) -> None:
    import nibabel

    for number in range(1500):
        volume = np.random.default_rng(number).integers(0, 400, (48, 48, 20), np.int16)
        labels = (volume > 300).astype(np.uint8)
        nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), data / f"{number:04d}_x.nii.gz")
        nibabel.save(nibabel.Nifti1Image(labels, np.eye(4)), data / f"{number:04d}_y.nii.gz")


def shards(data: Path) -> None:
    """MosaicML's: a head of offsets, then samples."""
    draw = np.random.default_rng(1)
    for number in range(8):
        sizes = draw.integers(20_000, 60_000, 500)
        offsets = np.concatenate([[0], np.cumsum(sizes)]) + 4 * 502
        with (data / f"shard.{number:05d}.mds").open("wb") as file:
            file.write(np.uint32([len(sizes), *offsets]).tobytes())
            file.write(draw.bytes(int(sizes.sum())))


def pages(data: Path) -> None:
    """FFCV's: one file of pages of 2 MiB, each of 50 samples."""
    draw = np.random.default_rng(1)
    with (data / "train.beton").open("wb") as file:
        for _ in range(120):
            file.write(draw.bytes(2**21))


def tensors(data: Path) -> None:
    import torch
    from safetensors.torch import save_file

    for number in range(8):
        save_file({f"s{n}": torch.rand(8192) for n in range(800)}, data / f"{number}.safetensors")


def tars(data: Path) -> None:
    import tarfile

    draw = np.random.default_rng(1)
    for number in range(16):
        with tarfile.open(data / f"{number:03d}.tar", "w") as tar:
            for sample in range(250):
                info = tarfile.TarInfo(f"{sample:05d}.bin")
                info.size = int(draw.integers(20_000, 60_000))
                tar.addfile(info, io.BytesIO(draw.bytes(info.size)))


def chunks(data: Path) -> None:
    import zarr

    made = zarr.create_array(
        data / "x.zarr", shape=(3200, 20_000), chunks=(1, 20_000), dtype="f4", compressors=None
    )
    for number in range(3200):
        made[number] = np.random.default_rng(number).random(20_000, np.float32)


def groups(data: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    draw = np.random.default_rng(1)
    for number in range(16):
        table = pyarrow.table({name: draw.random(160_000, np.float32) for name in "abcdefgh"})
        parquet.write_table(table, data / f"{number:03d}.parquet", row_group_size=16_000, compression="none")


def preprocessed(data: Path) -> None:
    """nnU-Net's: a volume a file, of which a patch is read."""
    for number in range(340):
        volume = np.random.default_rng(number).random((48, 128, 128), np.float32)
        np.save(data / f"case_{number:03d}.npy", volume)


def compressed(data: Path) -> None:
    """The same since nnU-Net 2.6: chunks and blocks, compressed."""
    import blosc2

    for number in range(340):
        volume = np.random.default_rng(number).random((48, 128, 128), np.float32)
        blosc2.asarray(
            volume, chunks=(24, 64, 64), blocks=(12, 32, 32), urlpath=str(data / f"{number:03d}.b2nd")
        )


def lightning_map(data: Path) -> None:
    import lmdb

    draw = np.random.default_rng(1)
    with lmdb.open(str(data / "train.lmdb"), map_size=2**30, subdir=False, lock=False) as made:
        for first in range(0, 4000, 100):
            with made.begin(write=True) as transaction:
                for number in range(first, first + 100):
                    size = int(draw.integers(20_000, 120_000))
                    transaction.put(f"{number:08d}".encode(), draw.bytes(size))


def rows_of_blobs(data: Path) -> None:
    import sqlite3

    draw = np.random.default_rng(1)
    with sqlite3.connect(data / "train.db") as made:
        made.execute("create table samples (id integer primary key, data blob)")
        for number in range(4000):
            made.execute("insert into samples values (?, ?)", (number, draw.bytes(60_000)))


def saved(data: Path) -> None:
    import torch

    for number, size in enumerate(np.random.default_rng(1).integers(15_000, 30_000, 3200)):
        torch.save({"x": torch.rand(int(size)), "y": torch.zeros(8)}, data / f"{number:05d}.pt")


def scans(data: Path) -> None:
    """120 volumes in chunks."""
    import h5py

    with h5py.File(data / "scans.h5", "w") as file:
        for number in range(120):
            scan = np.random.default_rng(number).integers(0, 400, (128, 128, 128), np.int16)
            file.create_dataset(str(number), data=scan, chunks=(32, 32, 32))


def pictures(data: Path) -> None:
    """Parquet files of 60 pictures each."""
    import pyarrow
    from pyarrow import parquet

    draw = np.random.default_rng(1)
    for number in range(160):
        rows = [draw.bytes(int(size)) for size in draw.integers(20_000, 60_000, 60)]
        table = pyarrow.table({"image": rows})
        parquet.write_table(table, data / f"{number:03d}.parquet", row_group_size=20)


def shards_of_rows(data: Path, files: int = 1200, rows: int = 80) -> None:
    draw = np.random.default_rng(1)
    for number in range(files):
        (data / f"{number:04d}.bin").write_bytes(draw.bytes(rows * ROW))


def npy_and_h5(data: Path) -> None:
    import h5py

    arrays(data, 1500)
    with h5py.File(data / "rest.h5", "w") as file:
        rows = np.random.default_rng(0).integers(0, 2**16, (1500, 32768), np.uint16)
        file.create_dataset("x", data=rows, chunks=(1, 32768))


def saved_as_pth(data: Path) -> None:
    import torch

    for number, size in enumerate(np.random.default_rng(1).integers(15_000, 30_000, 1600)):
        torch.save({"x": torch.rand(int(size))}, data / f"{number:05d}.pth")


def zipped(data: Path) -> None:
    import bz2

    draw = np.random.default_rng(1)
    for number in range(1600):
        (data / f"{number:05d}.bz2").write_bytes(bz2.compress(draw.bytes(30_000)))


def frames(data: Path) -> None:
    draw = np.random.default_rng(1)
    for number in range(4000):
        (data / f"{number:05d}.jpg").write_bytes(draw.bytes(int(draw.integers(15_000, 30_000))))


def images_and_masks(data: Path) -> None:
    draw = np.random.default_rng(1)
    for number in range(1600):
        (data / f"{number:05d}.img").write_bytes(draw.bytes(80_000))
        if number % 2:
            (data / f"{number:05d}.mask").write_bytes(draw.bytes(20_000))


def waves(data: Path) -> None:
    draw = np.random.default_rng(1)
    for number in range(600):
        (data / f"{number:04d}.wav").write_bytes(draw.bytes(int(draw.integers(400_000, 900_000))))


def lines(data: Path) -> None:
    import gzip

    draw = np.random.default_rng(1)
    for number in range(40):
        with gzip.open(data / f"{number:03d}.jsonl.gz", "wb", 1) as file:
            for _ in range(400):
                file.write(draw.bytes(6_000).hex().encode() + b"\n")


# ---- Datasets.

ROW = 10_000


class ByIndex:
    length: int | None = None

    def __init__(self, data: Path) -> None:
        self.data = data
        self.files = sorted(path for path in data.rglob("*") if path.is_file())
        self.opened: Any = None

    def __len__(self) -> int:
        return self.length or len(self.files)


class Npy(ByIndex):
    def __getitem__(self, index: int) -> Any:
        return np.load(self.files[index])[:1000]


class Cases(ByIndex):
    def __getitem__(self, index: int) -> Any:
        with np.load(self.files[index]) as case:
            x, y = case["x"], case["y"]
        at = [int(np.random.randint(0, edge - 31)) for edge in x.shape]
        crop = tuple(slice(start, start + 32) for start in at)
        return x[crop][None].copy(), y[crop].astype(np.int64)


class Blobs(ByIndex):
    """The head of a file stands for what a decoder would make of it."""

    def __getitem__(self, index: int) -> Any:
        data = np.frombuffer(self.files[index].read_bytes(), np.uint8)[: 3 * 64 * 64]
        return data.reshape(3, 64, 64).astype(np.float32) / 255, int(self.files[index].parent.name)


class Photos(ByIndex):
    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        return np.asarray(Image.open(self.files[index]).convert("RGB"))[:64, :64].copy()


class Windows(ByIndex):
    """Tokens of a map that each worker makes for itself."""

    window = 50_000
    length = 96 * 2**20 // window

    def __getitem__(self, index: int) -> Any:
        if self.opened is None:
            self.opened = np.memmap(self.files[0], np.uint16, "r")
        return self.opened[index * self.window : (index + 1) * self.window].astype(np.int64)


class Inherited(Windows):
    """The same, of a map that is made before the workers start."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.opened = np.memmap(self.files[0], np.uint16, "r")


class Documents(ByIndex):
    length = 3000

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.begins = np.memmap(data / "tokens.idx", np.int64, "r")
        self.opened = np.memmap(data / "tokens.bin", np.uint16, "r")

    def __getitem__(self, index: int) -> Any:
        return self.opened[self.begins[index] :][:10_000].astype(np.int64)


class Rows(ByIndex):
    length = 5000

    def __getitem__(self, index: int) -> Any:
        import h5py

        if self.opened is None:
            self.opened = h5py.File(self.files[0], "r")["x"]
        return self.opened[index].astype(np.float32)


class Slices(Rows):
    length = 6400


class Times(ByIndex):
    length = 2000

    def __getitem__(self, index: int) -> Any:
        import xarray

        if self.opened is None:
            self.opened = xarray.open_dataset(self.files[0], engine="h5netcdf")
        return self.opened["t"].isel(time=index).values


class Volumes(ByIndex):
    def __len__(self) -> int:
        return len(self.files) // 2

    def __getitem__(self, index: int) -> Any:
        import nibabel

        return [np.asarray(nibabel.load(path).dataobj)[:8] for path in self.files[2 * index : 2 * index + 2]]


class Mds(ByIndex):
    length = 4000

    def __getitem__(self, index: int) -> Any:
        with self.files[index // 500].open("rb") as file:
            file.seek(4 * (1 + index % 500))
            begin, end = np.frombuffer(file.read(8), np.uint32)
            file.seek(int(begin))
            return np.frombuffer(file.read(int(end - begin)), np.uint8)[:16000].copy()


class Tensors(ByIndex):
    length = 6400

    def __getitem__(self, index: int) -> Any:
        from safetensors import safe_open

        if self.opened is None:
            self.opened = [safe_open(path, "pt") for path in self.files]
        return self.opened[index % 8].get_tensor(f"s{index // 8}")


class Chunks(ByIndex):
    length = 3200

    def __getitem__(self, index: int) -> Any:
        import zarr

        if self.opened is None:
            self.opened = zarr.open_array(self.data / "x.zarr", mode="r")
        return self.opened[index]


class Patches(ByIndex):
    def __getitem__(self, index: int) -> Any:
        volume = np.load(self.files[index], mmap_mode="r")
        return volume[self.patch(volume.shape)].copy()

    @staticmethod
    def patch(shape: tuple[int, ...]) -> tuple[slice, ...]:
        at = [
            int(np.random.randint(0, edge - most + 1)) for edge, most in zip(shape, (32, 64, 64), strict=True)
        ]
        return tuple(slice(start, start + most) for start, most in zip(at, (32, 64, 64), strict=True))


class CompressedPatches(Patches):
    def __getitem__(self, index: int) -> Any:
        import blosc2

        dparams = {"nthreads": 1}  # nnU-Net's
        volume = blosc2.open(urlpath=str(self.files[index]), mode="r", mmap_mode="r", dparams=dparams)
        return np.asarray(volume[self.patch(volume.shape)])


class Lmdb(ByIndex):
    length = 4000

    def __getitem__(self, index: int) -> Any:
        import lmdb

        if self.opened is None:
            self.opened = lmdb.open(
                str(self.files[0]), subdir=False, readonly=True, lock=False, readahead=False, meminit=False
            )
        with self.opened.begin(buffers=True) as transaction:
            return np.frombuffer(transaction.get(f"{index:08d}".encode()), np.uint8)[-16000:].copy()


class Sqlite(ByIndex):
    length = 4000

    def __getitem__(self, index: int) -> Any:
        import sqlite3

        if self.opened is None:
            self.opened = sqlite3.connect(f"file:{self.files[0]}?mode=ro", uri=True)
        (found,) = self.opened.execute("select data from samples where id = ?", (index,)).fetchone()
        return np.frombuffer(found, np.uint8)[:16000].copy()


class Groups(ByIndex):
    length = 160

    def __getitem__(self, index: int) -> Any:
        from pyarrow import parquet

        table = parquet.ParquetFile(self.files[index // 10]).read_row_group(index % 10)
        return np.stack([column.to_numpy() for column in table.columns])


class Saved(ByIndex):
    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.load(self.files[index])["x"][:1000].clone()


class Crops(ByIndex):
    length = 4000

    def __getitem__(self, index: int) -> Any:
        import h5py

        with h5py.File(self.data / "scans.h5") as file:
            z, y, x = np.random.randint(0, 128 - 24, 3)
            return file[str(np.random.randint(120))][z : z + 24, y : y + 24, x : x + 24]


class Threads(Npy):
    """Eight threads read the samples of a batch, as people do where storage answers late."""

    def __getitems__(self, indices: list[int]) -> Any:
        if self.opened is None:
            self.opened = ThreadPoolExecutor(8)
        return list(self.opened.map(self.__getitem__, indices))


class Mixed(Npy):
    """Some samples read others, too: mixup, mosaics, triplets, windows of frames."""

    others: Callable[[int, int], list[int]]

    def __getitem__(self, index: int) -> Any:
        most = len(self.files)
        found = [super(Mixed, self).__getitem__(at) for at in [index, *type(self).others(index, most)]]
        return np.mean(found, 0)


class Mixup(Mixed):
    others = lambda index, most: [int(np.random.randint(most))] if index % 2 else []  # noqa: E731


class Mosaic(Mixed):
    others = lambda index, most: [  # noqa: E731
        int(at) for at in np.random.randint(0, most, 3 + (np.random.random() < 0.15))
    ]


class Triplets(Mixed):
    others = lambda index, most: [int(at) for at in np.random.randint(0, most, 2)]  # noqa: E731


class Frames(Blobs):
    """Eight frames, one after the other."""

    def __len__(self) -> int:
        return len(self.files) - 8

    def __getitem__(self, index: int) -> Any:
        return np.stack(
            [np.frombuffer(path.read_bytes(), np.uint8)[:5000] for path in self.files[index:][:8]]
        )


class Masked(ByIndex):
    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.files = [path for path in self.files if path.suffix == ".img"]

    def __getitem__(self, index: int) -> Any:
        mask = self.files[index].with_suffix(".mask")
        size = len(mask.read_bytes()) if mask.exists() else 0
        return np.frombuffer(self.files[index].read_bytes(), np.uint8)[:5000].copy(), size


class Both(ByIndex):
    """Half of the samples in files of their own, the others in one of HDF5, as ConcatDataset has them."""

    length = 3000

    def __getitem__(self, index: int) -> Any:
        import h5py

        if index < 1500:
            return np.load(self.files[index])[:1000]
        if self.opened is None:
            self.opened = h5py.File(self.data / "rest.h5", "r")["x"]
        return self.opened[index - 1500][:1000].astype(np.float32)


class ShardRows(ByIndex):
    length = 96_000

    def __getitem__(self, index: int) -> Any:
        with self.files[index // 80].open("rb") as file:
            file.seek(index % 80 * ROW)
            return np.frombuffer(file.read(ROW), np.uint8).copy()


class TarMembers(ByIndex):
    """Tars whose members were listed before, opened once by each worker."""

    length = 4000

    def __init__(self, data: Path) -> None:
        import tarfile

        super().__init__(data)
        self.places = []
        for path in self.files:
            with tarfile.open(path) as tar:
                self.places += [(path, member.offset_data, member.size) for member in tar]

    def __getitem__(self, index: int) -> Any:
        path, offset, size = self.places[index]
        self.opened = self.opened or {}
        if path not in self.opened:
            self.opened[path] = path.open("rb")
        self.opened[path].seek(offset)
        return np.frombuffer(self.opened[path].read(size), np.uint8)[:16000].copy()


class Child(ByIndex):
    """A decoder in a process of its own."""

    def __getitem__(self, index: int) -> Any:
        import subprocess

        done = subprocess.run(["/bin/bzip2", "-dc", self.files[index]], capture_output=True, check=True)
        return np.frombuffer(done.stdout, np.uint8)[:5000].copy()


class Waves(ByIndex):
    def __getitem__(self, index: int) -> Any:
        with self.files[index].open("rb", buffering=0) as file:
            file.read(44)
            file.seek(44 + 2 * int(np.random.randint(100_000)))
            return np.frombuffer(file.read(64_000), np.int16).copy()


# ---- How they are read.


def from_lines(data: Path) -> Iterable[Any]:
    import gzip

    def samples(worker: int, of: int) -> Iterator[Any]:
        for path in sorted(data.iterdir())[worker::of]:
            with gzip.open(path) as file:
                yield from (len(line) for line in file)

    return streamed(lambda worker, of: shuffled(samples(worker, of), 100, worker))


def repeated(dataset: Npy) -> Iterable[Any]:
    """RASampler: each sample three times, one after the other."""
    drawn = np.random.default_rng(RANK).permutation(len(dataset)).repeat(3)
    return loader(dataset, batch_size=8, sampler=drawn.tolist(), drop_last=True)


def weighted(dataset: Npy) -> Iterable[Any]:
    from torch.utils.data import WeightedRandomSampler

    return loader(dataset, batch_size=8, sampler=WeightedRandomSampler([1.0] * len(dataset), len(dataset)))


def order(dataset: Any) -> Any:
    from torch.utils.data import DistributedSampler, RandomSampler

    return DistributedSampler(dataset) if PROCESSES > 1 else RandomSampler(dataset)


def loader(dataset: Any, workers: int = 2, batch: int = 8, **more: Any) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    more = more or {"batch_size": batch, "sampler": order(dataset), "drop_last": True}
    return DataLoader(dataset, num_workers=workers, **more)


def batched(dataset: Any) -> Iterable[Any]:
    """A batch sampler, and no sampler, as accelerate has it."""
    from torch.utils.data import BatchSampler

    return loader(dataset, batch_sampler=BatchSampler(order(dataset), 8, True))


def bucketed(dataset: Npy) -> Iterable[Any]:
    """Batches of arrays of similar sizes, padded."""
    import torch

    sizes = np.array([path.stat().st_size for path in dataset.files])
    drawn = np.random.default_rng(RANK).permutation(len(sizes))[: len(sizes) // 80 * 80]
    batches = [pool[np.argsort(sizes[pool])].reshape(10, 8) for pool in drawn.reshape(-1, 80)]

    def padded(samples: list[Any]) -> Any:
        return torch.nn.utils.rnn.pad_sequence([torch.from_numpy(sample) for sample in samples])

    return loader(dataset, batch_sampler=np.concatenate(batches).tolist(), collate_fn=padded)


def accelerated(dataset: Any) -> Iterable[Any]:
    from accelerate import Accelerator

    return Accelerator(cpu=True).prepare(batched(dataset))


def stateful(dataset: Any) -> Iterable[Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(dataset, 8, sampler=order(dataset), num_workers=2, drop_last=True)


def background(batches: Iterable[Any]) -> Iterator[Any]:
    """Batches that a thread takes from the loader, one ahead."""
    import queue
    import threading

    ahead: queue.Queue[Any] = queue.Queue(1)

    def take() -> None:
        for batch in batches:
            ahead.put(batch)
        ahead.put(None)

    threading.Thread(target=take, daemon=True).start()
    while (batch := ahead.get()) is not None:
        yield batch


def validated(dataset: Rows) -> Iterator[Any]:
    from torch.utils.data import Subset

    batches = iter(loader(Subset(dataset, range(4000))))
    while True:
        for _ in range(VALIDATED):
            yield next(batches)
        for _ in loader(Subset(dataset, range(4000, 4160)), batch_size=8):
            time.sleep(STEP / 2)


def streamed(samples: Callable[[int, int], Iterator[Any]]) -> Iterable[Any]:
    """An iterable dataset; `samples` is given a worker's number and how many there are, of all processes."""
    from torch.utils.data import IterableDataset, get_worker_info

    class Streamed(IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            worker = get_worker_info()
            return samples(worker.num_workers * RANK + worker.id, worker.num_workers * PROCESSES)

    return loader(Streamed(), batch_size=8)


def shuffled(samples: Iterable[Any], most: int, seed: int) -> Iterator[Any]:
    draw, buffer = np.random.default_rng(seed), []
    for sample in samples:
        buffer.append(sample)
        if len(buffer) == most:
            yield buffer.pop(draw.integers(most))


def from_tars(data: Path) -> Iterable[Any]:
    import tarfile

    def samples(worker: int, of: int) -> Iterator[Any]:
        for path in sorted(data.iterdir())[worker::of]:
            with tarfile.open(path, "r|") as tar:
                yield from (tar.extractfile(one).read()[:16000] for one in tar)  # type: ignore[union-attr]

    return streamed(lambda worker, of: shuffled(samples(worker, of), 100, worker))


def from_pages(data: Path) -> Iterable[Any]:
    """FFCV's quasi-random order: random pages, and random samples of those in memory."""

    def samples(worker: int, of: int) -> Iterator[Any]:
        drawn = np.random.default_rng(5).permutation(120)[worker::of]
        with (data / "train.beton").open("rb", buffering=0) as file:
            for page in drawn:
                whole = np.frombuffer(os.pread(file.fileno(), 2**21, int(page) * 2**21), np.uint8)
                yield from whole[: 50 * 41_000].reshape(50, 41_000)[:, :16_000].copy()

    return streamed(lambda worker, of: shuffled(samples(worker, of), 100, worker))


def webdataset(data: Path) -> Iterable[Any]:
    import webdataset as wds

    files = [str(path) for path in sorted(data.iterdir())]
    made = wds.WebDataset(files, shardshuffle=100, nodesplitter=wds.split_by_node).shuffle(200)
    return loader(made.to_tuple("bin").map(lambda one: (len(one[0]), 1)).batched(8), batch_size=None)


def huggingface(data: Path) -> Iterable[Any]:
    import datasets

    return loader(datasets.load_from_disk(str(data / "set")).with_format("torch"))


def streaming(data: Path) -> Iterable[Any]:
    """Hugging Face's streams: ten files at a time, and a buffer of 100 samples."""
    import datasets

    files = sorted(map(str, data.glob("*.parquet")))
    made = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    return loader(made.shuffle(seed=1, buffer_size=100).with_format("numpy"), batch_size=8)


KINDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Iterable[Any]]]] = {
    "npy": (arrays, lambda data: loader(Npy(data))),
    "turn": (arrays, lambda data: loader(Npy(data), 0)),
    "queue": (arrays, lambda data: loader(Npy(data))),
    "bucketed": (arrays, lambda data: bucketed(Npy(data))),
    "photos": (photos, lambda data: loader(Photos(data))),
    "nii": (volumes, lambda data: loader(Volumes(data))),
    "hdf5": (hdf5, lambda data: batched(Rows(data))),
    "accelerate": (hdf5, lambda data: accelerated(Rows(data))),
    "validation": (hdf5, lambda data: validated(Rows(data))),
    "xarray": (netcdf, lambda data: loader(Times(data))),
    "zarr": (chunks, lambda data: loader(Chunks(data))),
    "parquet": (groups, lambda data: loader(Groups(data), batch_size=None, sampler=order(Groups(data)))),
    "tokens": (tokens, lambda data: loader(Windows(data))),
    "inherited": (tokens, lambda data: loader(Inherited(data))),
    "megatron": (documents, lambda data: loader(Documents(data))),
    "arrow": (arrow, huggingface),
    "safetensors": (tensors, lambda data: loader(Tensors(data))),
    "tars": (tars, from_tars),
    "webdataset": (tars, webdataset),
    "mds": (shards, lambda data: loader(Mds(data))),
    "ffcv": (pages, from_pages),
    "patches": (preprocessed, lambda data: loader(Patches(data), 2, 2)),
    "blosc2": (compressed, lambda data: loader(CompressedPatches(data), 2, 2)),
    "lmdb": (lightning_map, lambda data: loader(Lmdb(data))),
    "sqlite": (rows_of_blobs, lambda data: loader(Sqlite(data))),
    "pt": (saved, lambda data: loader(Saved(data))),
    "crops": (scans, lambda data: loader(Crops(data), 2, 2)),
    "streaming": (pictures, streaming),
    "stateful": (arrays, lambda data: stateful(Npy(data))),
    "background": (arrays, lambda data: background(loader(Npy(data)))),
    "npz": (cases, lambda data: loader(Cases(data), 2, 2)),
    "volumes": (cases, lambda data: loader(Cases(data), 4, 2)),
    "images": (blobs, lambda data: loader(Blobs(data), 2, 16)),
    "threads": (arrays, lambda data: loader(Threads(data))),
    "mixup": (arrays, lambda data: loader(Mixup(data))),
    "mosaic": (arrays, lambda data: loader(Mosaic(data))),
    "triplets": (arrays, lambda data: loader(Triplets(data))),
    "windows": (frames, lambda data: loader(Frames(data))),
    "masks": (images_and_masks, lambda data: loader(Masked(data))),
    "both": (npy_and_h5, lambda data: loader(Both(data))),
    "rows": (shards_of_rows, lambda data: loader(ShardRows(data))),
    "members": (tars, lambda data: loader(TarMembers(data))),
    "pth": (saved_as_pth, lambda data: loader(Saved(data))),
    "child": (zipped, lambda data: loader(Child(data))),
    "waves": (waves, lambda data: loader(Waves(data))),
    "gzip": (lines, from_lines),
    "repeated": (arrays, lambda data: repeated(Npy(data))),
    "weighted": (arrays, lambda data: weighted(Npy(data))),
    "slices": (contiguous, lambda data: loader(Slices(data), 2, 16)),
}


# ---- Training.


def network(kind: str) -> Any:
    from torch import nn

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
    return nn.Sequential(nn.Linear(32768, 192), nn.ReLU(), nn.Linear(192, 10))


def trained(kind: str) -> Callable[[Any], None]:
    import torch

    model = network(kind)
    if PROCESSES > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer, loss_of = torch.optim.SGD(model.parameters(), lr=1e-3), torch.nn.CrossEntropyLoss()

    def step(batch: Any) -> None:
        x, y = (batch, torch.zeros(len(batch), dtype=torch.int64)) if kind == "slices" else batch
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()

    return step


def queued() -> Callable[[Any], None]:
    """An accelerator that is given its steps ahead, as CUDA is; its host waits every SYNC steps."""
    draw, free, count = np.random.default_rng(RANK), [0.0], [0]

    def step(batch: Any) -> None:
        free[0] = max(free[0], time.perf_counter()) + 0.03 * draw.uniform(0.95, 1.05)
        count[0] += 1
        time.sleep(0.001)
        if count[0] % SYNC == 0:
            time.sleep(max(0.0, free[0] - time.perf_counter()))

    return step


def asleep() -> Callable[[Any], None]:
    import torch

    gradient = torch.ones(250_000)

    def step(batch: Any) -> None:
        time.sleep(STEP)
        if PROCESSES > 1:
            torch.distributed.all_reduce(gradient)

    return step


class Done(Exception):
    """So many steps were made."""


def train(kind: str, data: Path, steps: int, then: Callable[[int], None] = lambda done: None) -> list[float]:
    """Train and return when each step got its batch, in seconds; `then` is told how many steps are done."""
    import torch

    torch.set_num_threads(1)
    if PROCESSES > 1:
        torch.distributed.init_process_group("gloo")
    step = (
        trained(kind) if kind in ("volumes", "images", "slices") else (queued if kind in AHEAD else asleep)()
    )
    times: list[float] = []

    def tick(batch: Any) -> None:
        times.append(time.perf_counter())
        step(batch)
        then(len(times))
        if len(times) == steps:
            raise Done

    with suppress(Done):
        while True:
            for batch in KINDS[kind][1](data):
                tick(batch)
    return times


def batch_of(kind: str) -> int:
    return {
        "npz": 2,
        "volumes": 2,
        "patches": 2,
        "blosc2": 2,
        "crops": 2,
        "images": 16,
        "slices": 16,
        "parquet": 1,
    }.get(kind, 8)


def rate_of(times: Any, samples: float, every: int = 1, pause: int = 0) -> float:
    """Return samples/s of the steps that got their batches at `times`, without the first 35 %.

    Only every so many steps are looked at, for hosts that run ahead of their accelerators. Steps after every
    `pause` ones, in which the job validates, are left out."""
    first = int(0.35 * len(times)) // every * every
    gaps = np.diff(times[first::every])
    if pause:
        gaps = gaps[(first + 1 + np.arange(len(gaps))) % pause != 0]
    return float(samples * every * len(gaps) / gaps.sum())


if __name__ == "__main__":
    if sys.argv[1] == "make":
        Path(sys.argv[3]).mkdir(parents=True)
        KINDS[sys.argv[2]][0](Path(sys.argv[3]))
    else:
        name = sys.argv[2]
        times = train(name, Path(sys.argv[3]), int(sys.argv[4]))
        pause = VALIDATED if name == "validation" else 0
        rate = rate_of(times, batch_of(name), SYNC if name in AHEAD else 1, pause)
        print(json.dumps({"rate": rate, "seconds": times[-1] - times[0]}), flush=True)
