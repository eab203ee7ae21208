"""Jobs in the styles that people use, beside their replays, on a medium of a known rate and latency. As root.

    python benchmarks/own_job_styles.py KIND FOLDER MB_PER_SECOND [LATENCY [TURNS [PROCESSES]]]

A rate or a latency of 0 is no limit. The job is recorded on a medium without limits, out of the page cache;
then job, torch and direct run in turns on the one with limits, cold, and medians of the turns are compared.
Rates are from batch to batch, over the last 65 % of the steps. `$JOB_PYTHON` runs the job.

    python benchmarks/own_job_styles.py train KIND DATA STEPS     the job alone
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
DEVICE = HERE.parents[1] / "tests/lab/device.sh"
PYTHON = os.environ.get("JOB_PYTHON", sys.executable)
FEEDRATE = (sys.executable, "-m", "emulator")
BATCH, STEP = 8, 0.025


# ---- Data.


def arrays(data: Path) -> None:
    for number, size in enumerate(np.random.default_rng(1).integers(15_000, 30_000, 1600)):
        np.save(data / f"{number:05d}.npy", np.random.default_rng(number).random(size, np.float32))


def tokens(data: Path) -> None:
    np.random.default_rng(1).integers(0, 2**16, 96 * 2**20, np.uint16).tofile(data / "tokens.bin")


def hdf5(data: Path) -> None:
    import h5py

    with h5py.File(data / "train.h5", "w") as file:
        made = file.create_dataset("x", (5000, 16384), "u2", chunks=(1, 16384))
        for first in range(0, 5000, 500):
            made[first : first + 500] = np.random.default_rng(first).integers(
                0, 2**16, (500, 16384), np.uint16
            )


def volumes(data: Path) -> None:
    import nibabel

    for number in range(1500):
        volume = np.random.default_rng(number).integers(0, 400, (48, 48, 20), np.int16)
        nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), data / f"{number:04d}_x.nii.gz")
        nibabel.save(
            nibabel.Nifti1Image((volume > 300).astype(np.uint8), np.eye(4)), data / f"{number:04d}_y.nii.gz"
        )


def shards(data: Path) -> None:
    """As MosaicML's: a head of offsets, then samples."""
    draw = np.random.default_rng(1)
    for number in range(8):
        sizes = draw.integers(20_000, 60_000, 500)
        offsets = np.concatenate([[0], np.cumsum(sizes)]) + 4 * 502
        with (data / f"shard.{number:05d}.mds").open("wb") as file:
            file.write(np.uint32([len(sizes), *offsets]).tobytes())
            file.write(draw.bytes(int(sizes.sum())))


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


def records(data: Path) -> None:
    import tensorflow

    draw = np.random.default_rng(1)
    for number in range(16):
        with tensorflow.io.TFRecordWriter(str(data / f"{number:03d}.tfrecord")) as file:
            for size in draw.integers(20_000, 60_000, 250):
                file.write(draw.bytes(int(size)))


def chunks(data: Path) -> None:
    import zarr

    made = zarr.create_array(
        data / "x.zarr", shape=(1600, 20_000), chunks=(1, 20_000), dtype="f4", compressors=None
    )
    for number in range(1600):
        made[number] = np.random.default_rng(number).random(20_000, np.float32)


# ---- Jobs: a dataset, and how it is read.


class ByIndex:
    def __init__(self, data: Path) -> None:
        self.data = data
        self.files = sorted(data.iterdir())
        self.opened: Any = None

    def __len__(self) -> int:
        return len(self.files)


class Npy(ByIndex):
    def __getitem__(self, index: int) -> Any:
        return np.load(self.files[index])[:1000]


class Windows(ByIndex):
    """Tokens of a map that each worker makes for itself."""

    window = 50_000

    def __len__(self) -> int:
        return 96 * 2**20 // self.window

    def __getitem__(self, index: int) -> Any:
        if self.opened is None:
            self.opened = np.memmap(self.files[0], np.uint16, "r")
        return self.opened[index * self.window : (index + 1) * self.window].astype(np.int64)


class Rows(ByIndex):
    def __len__(self) -> int:
        return 5000

    def __getitem__(self, index: int) -> Any:
        if self.opened is None:
            import h5py

            self.opened = h5py.File(self.files[0], "r")["x"]
        return self.opened[index].astype(np.int32)


class Volumes(ByIndex):
    def __len__(self) -> int:
        return len(self.files) // 2

    def __getitem__(self, index: int) -> Any:
        import nibabel

        return [np.asarray(nibabel.load(path).dataobj)[:8] for path in self.files[2 * index : 2 * index + 2]]


class Mds(ByIndex):
    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> Any:
        with self.files[index // 500].open("rb") as file:
            file.seek(4 * (1 + index % 500))
            begin, end = np.frombuffer(file.read(8), np.uint32)
            file.seek(int(begin))
            return np.frombuffer(file.read(int(end - begin)), np.uint8)[:16000].copy()


class Tensors(ByIndex):
    def __len__(self) -> int:
        return 6400

    def __getitem__(self, index: int) -> Any:
        from safetensors import safe_open

        if self.opened is None:
            self.opened = [safe_open(path, "pt") for path in self.files]
        return self.opened[index % 8].get_tensor(f"s{index // 8}")


class Chunks(ByIndex):
    def __len__(self) -> int:
        return 1600

    def __getitem__(self, index: int) -> Any:
        import zarr

        if self.opened is None:
            self.opened = zarr.open_array(self.data / "x.zarr", mode="r")
        return self.opened[index]


def loader(dataset: Any, workers: int = 2, **more: Any) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    more = more or {"batch_size": BATCH, "shuffle": True, "drop_last": True}
    return DataLoader(dataset, num_workers=workers, **more)


def batched(dataset: Any, workers: int = 2) -> Iterable[Any]:
    """As accelerate hands it over: a batch sampler, and no sampler."""
    from torch.utils.data import BatchSampler, RandomSampler

    return loader(dataset, workers, batch_sampler=BatchSampler(RandomSampler(dataset), BATCH, True))


def accelerated(data: Path) -> Iterable[Any]:
    from accelerate import Accelerator

    return Accelerator(cpu=True).prepare(batched(Rows(data)))


def shared(dataset: Any) -> Iterable[Any]:
    """Each process of torchrun has its part, and all wait for each other at every step."""
    import torch
    from torch.utils.data import DistributedSampler

    torch.distributed.init_process_group("gloo")
    gradient = torch.ones(250_000)
    for batch in loader(dataset, batch_size=BATCH, sampler=DistributedSampler(dataset), num_workers=2):
        yield batch
        torch.distributed.all_reduce(gradient)


def webdataset(data: Path) -> Iterable[Any]:
    import webdataset as wds

    files = [str(path) for path in sorted(data.iterdir())]
    made = (
        wds.WebDataset(files, shardshuffle=100).shuffle(200).to_tuple("bin").map(lambda one: (len(one[0]),))
    )
    return loader(made.batched(BATCH), batch_size=None)


def marked(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches of a loop without a DataLoader, which marks its steps."""
    try:
        from feedrate import mark_step
    except ImportError:
        mark_step = int
    for batch in batches:
        yield batch
        mark_step(BATCH)


def tfdata(data: Path) -> Iterable[Any]:
    import tensorflow

    files = tensorflow.data.Dataset.list_files(str(data / "*.tfrecord"))
    made = files.interleave(tensorflow.data.TFRecordDataset, cycle_length=2)
    return made.shuffle(200).map(tensorflow.strings.length).batch(BATCH).prefetch(2)


def grained(data: Path) -> Iterable[Any]:
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    dataset = Npy(data)
    indices = grain.samplers.IndexSampler(len(dataset), shuffle=True, num_epochs=1, seed=1)
    return grain.DataLoader(
        data_source=dataset, sampler=indices, worker_count=2, worker_buffer_size=2,
        operations=[grain.transforms.Batch(BATCH, drop_remainder=True)],
    )  # fmt: skip


def lightning(data: Path, tick: Callable[[], None]) -> None:
    import lightning as pl
    import torch

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch: Any, number: int) -> Any:
            tick()
            return self.weight.sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        plugins=[pl.fabric.plugins.environments.LightningEnvironment()],
    )  # fmt: skip
    trainer.fit(Model(), loader(Npy(data)))


def loop(data: Path) -> Iterator[Any]:
    """nanoGPT's: windows at any place of a map, no DataLoader."""
    draw = np.random.default_rng(1)
    while True:
        whole = np.memmap(data / "tokens.bin", np.uint16, "r")
        yield [
            whole[at : at + 50_000].astype(np.int64) for at in draw.integers(0, len(whole) - 50_000, BATCH)
        ]


KINDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Iterable[Any]]]] = {
    "npy": (arrays, lambda data: loader(Npy(data))),
    "turn": (arrays, lambda data: loader(Npy(data), 0)),
    "tokens": (tokens, lambda data: loader(Windows(data))),
    "hdf5": (hdf5, lambda data: batched(Rows(data))),
    "accelerate": (hdf5, accelerated),
    "nii": (volumes, lambda data: loader(Volumes(data))),
    "mds": (shards, lambda data: loader(Mds(data))),
    "safetensors": (tensors, lambda data: loader(Tensors(data))),
    "ddp": (arrays, lambda data: shared(Npy(data))),
    "loop": (tokens, lambda data: marked(loop(data))),
    "webdataset": (tars, webdataset),
    "zarr": (chunks, lambda data: loader(Chunks(data))),
    "tfdata": (records, lambda data: marked(tfdata(data))),
    "grain": (arrays, lambda data: marked(grained(data))),
    "lightning": (arrays, lambda data: []),
}


class Done(Exception):
    """So many steps were made."""


def train(kind: str, data: Path, steps: int) -> None:
    import torch

    torch.set_num_threads(1)
    times: list[float] = []

    def tick() -> None:
        times.append(time.perf_counter())
        if len(times) == steps:
            raise Done
        time.sleep(STEP)

    with suppress(Done):
        while True:
            if kind == "lightning":
                lightning(data, tick)
            for _ in KINDS[kind][1](data):
                tick()
    print(json.dumps({"rate": rate_of(times, BATCH)}), flush=True)


def rate_of(times: Any, samples: float) -> float:
    """Return the samples/s of the steps that got their batches at `times`, without the first 35 %."""
    first = int(0.35 * len(times))
    return float(samples * (len(times) - 1 - first) / (times[-1] - times[first]))


# ---- Job and replay in turns.


def run(*words: object) -> str:
    command = [str(word) for word in words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    sys.stderr.write(done.stderr)
    return done.stdout


def evict(folder: Path) -> None:
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def job_of(kind: str, data: Path, steps: int, processes: int) -> list[object]:
    launcher: list[object] = [PYTHON]
    if processes > 1:
        launcher = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes]
    return [*launcher, HERE, "train", kind, data, steps]


def replay(folder: Path, how: str, steps: int, processes: int) -> tuple[float, list[str]]:
    from emulator.config.workload import load_workload
    from emulator.record.out import read_result
    from emulator.record.steps import read_steps

    out, job = folder / "out", folder / "job"
    run(*FEEDRATE, "run", folder / "mnt/replay", "--workload", job / "workload.toml", "-n", processes,
        "--loader", how, "--steps", steps, "--out", out, "--force", "--cache", "cold")  # fmt: skip
    found = read_result(out)
    rows = read_steps(out)
    rows = rows[rows["rank"] == 0]
    workload = load_workload(str(job / "workload.toml"))
    samples = workload.loader.batch_size * workload.job.samples
    flags = [flag.name for flag in found.points[0].flags]
    return processes * rate_of(np.sort(rows["got"]), samples), flags


def limit(medium: Path, rate: float, late: float) -> None:
    """Serve the same device anew, with a rate and a latency."""
    loop = run("findmnt", "-no", "SOURCE", medium / "mnt").strip()
    run("umount", medium / "mnt")
    run("losetup", "-d", loop)
    while (medium / "image").is_mount():
        time.sleep(0.1)  # the loop device lets go of it in its own time
        with suppress(SystemExit):
            run("umount", medium / "image")
    run(sys.executable, DEVICE.with_name("medium.py"), medium / "backing", medium / "image", int(rate * 1e6),
        *([late] if late else []))  # fmt: skip
    run("mount", "-o", "noatime", run("losetup", "-f", "--show", "--direct-io=on", medium / "image").strip(),
        medium / "mnt")  # fmt: skip


def device_of(folder: Path) -> Path:
    """Return the device in /sys/block, with the kernel's own read-ahead: FUSE asks for 20 times as much."""
    device = Path("/sys/block") / Path(run("findmnt", "-no", "SOURCE", folder / "mnt").strip()).name
    (device / "queue/read_ahead_kb").write_text("128")
    return device


def device_reads(folder: Path) -> tuple[int, int]:
    """Return the read requests and bytes of the device so far."""
    fields = (device_of(folder) / "stat").read_text().split()
    return int(fields[0]), 512 * int(fields[2])


def measure(kind: str, folder: Path, rate: float, late: float, turns: int, processes: int) -> None:
    data, job = folder / "mnt/data", folder / "job"
    run(DEVICE, "up", folder, "2G", 0, "shared")
    try:
        data.mkdir()
        run(PYTHON, HERE, "make", kind, data)
        evict(data)
        device_of(folder)
        run(*FEEDRATE, "record", "--out", job, "--force", "--traced-steps", 40, "--",
            *job_of(kind, data, 140, processes))  # fmt: skip
        run(*FEEDRATE, "generate", folder / "mnt/replay", "--recipe", job / "recipe.toml")
        limit(folder, rate, late)
        found: dict[str, list[float]] = {"job": [], "torch": [], "direct": []}
        flags: set[str] = set()
        steps = 80
        for turn in range(turns):
            for how in ("job", "torch", "direct") if turn % 2 else ("torch", "job", "direct"):
                evict(folder / "mnt")
                before = device_reads(folder)
                if how == "job":
                    last = run(*job_of(kind, data, steps, processes)).splitlines()[-1]
                    found["job"].append(processes * json.loads(last)["rate"])
                else:
                    replayed, seen = replay(folder, how, steps, processes)
                    found[how].append(replayed)
                    flags |= set(seen)
                asked = [now - then for now, then in zip(device_reads(folder), before, strict=True)]
                sys.stderr.write(
                    f"{how} {found[how][-1]:.1f}: {asked[0]} requests, {asked[1] / 1e6:.1f} MB\n"
                )
        base = median(found["job"])
        told = [f"job {base:.1f} ({min(found['job']):.1f} to {max(found['job']):.1f})"]
        for how in ("torch", "direct"):
            off = [value / base - 1 for value in found[how]]
            told.append(f"{how} {median(off):+.1%} ({min(off):+.1%} to {max(off):+.1%})")
        print(
            kind,
            f"{rate:g} MB/s {late:g} s x{processes}:",
            *told,
            *sorted(flags),
            f"load {os.getloadavg()[0]:.1f}",
        )
    finally:
        subprocess.run([DEVICE, "down", folder], check=True)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        KINDS[sys.argv[2]][0](Path(sys.argv[3]))
    elif sys.argv[1] == "train":
        train(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        name, place, speed, *rest = sys.argv[1:]
        defaults = ["0", "3", "1"]
        late, turns, count = [*rest, *defaults[len(rest) :]]
        measure(name, Path(place), float(speed), float(late), int(turns), int(count))
