"""Whatever a file holds, a command that reads it ends in time, with a result or with one line.

A short, seeded part runs by default; `make test-faults` goes on for minutes and prints a table. A failure
names the seed that repeats it: FEEDRATE_FAULTS_SEED=N.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from itertools import chain
from pathlib import Path
from random import Random

import pytest
from command import Done, feedrate
from faults.harness import complaint, forked, load_modules_of
from faults.mutate import Damage, bytes_damaged, json_damaged, lines_damaged

from emulator.config.workload import LoaderSpec
from emulator.dataset.manifest import open_dataset
from emulator.errors import DatasetError, StorageError
from emulator.loader import make_loader
from emulator.plan import Portion, Read

ROOT = Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("FEEDRATE_FAULTS_SEED", "20261122"))
SHORT = int(os.environ.get("FEEDRATE_FAULTS_CASES", "12"))
"""Cases of a class in the default run."""
LONG_SECONDS = float(os.environ.get("FEEDRATE_FAULTS_SECONDS", "600"))
FORMATS = ("npz", "npy", "nii", "nii.gz", "hdf5", "raw", "tfrecord", "parquet", "jpeg")
MANY = ("hdf5", "tfrecord", "parquet")
FOREIGN = ("npz", "hdf5", "tfrecord", "parquet")


class Reader:
    """A kind of file, and the commands that read it.

    `folder` of the specimens is copied for each case, one of its files that match `pattern` is damaged. In
    the commands {X} is the copy, {F} the damaged file, {O} a path that does not exist. With `finds` the first
    command has to notice every change of bytes. `memory`: see forked.
    """

    def __init__(
        self,
        name: str,
        folder: str,
        pattern: str,
        damage: Damage,
        *commands: str,
        finds: bool = False,
        memory: int | None = 4 * 2**30,
    ) -> None:
        self.name, self.folder, self.pattern, self.damage = name, folder, pattern, damage
        self.commands, self.finds, self.memory = commands, finds, memory


PLANNED = "run {X} --workload unet3d-tiny --dry-run -n 2 --mismatched-dataset"
GENERATE = "--recipe tiny --files 4 --dry-run"
READERS = [
    Reader(
        "manifest.json",
        "npz",
        "manifest.json",
        json_damaged,
        "verify {X}",
        PLANNED,
        f"generate {{X}} {GENERATE}",
    ),
    Reader("table of samples", "npz", "samples-*.npy", bytes_damaged, "verify {X}", PLANNED),
    *(
        Reader(f"{form} in verify", form, "sample_*", bytes_damaged, "verify {X}", finds=True)
        for form in FORMATS
    ),
    *(
        Reader(f"{form} in adopt", f"foreign-{form}", "*/sample_*", bytes_damaged, "adopt {X}")
        for form in FOREIGN
    ),
    Reader(
        "run.json", "result", "run.json", json_damaged, "report {X}", "compare {X} {X}", "fit {X} --out {O}"
    ),
    Reader("run.json in export", "result", "run.json", json_damaged, "export --mlperf {X} --out {O}"),
    Reader("run.json on a page", "result", "run.json", json_damaged, "report {X} --html {O}", memory=None),
    Reader("steps.parquet", "result", "steps.parquet", bytes_damaged, "report {X}", "fit {X} --out {O}"),
    Reader("workload", "toml", "workload.toml", lines_damaged, "workloads {F}", "datasize --workload {F}"),
    Reader("recipe", "toml", "recipe.toml", lines_damaged, "generate {O} --recipe {F} --files 2 --dry-run"),
    Reader("system", "toml", "system.toml", lines_damaged, "efficiency --system {F}"),
    Reader(
        "model", "toml", "checkpoint.toml", lines_damaged, "checkpoint {O} --model {F} --dry-run --subset"
    ),
    Reader("DLIO YAML", "toml", "dlio.yaml", lines_damaged, "import {F} --out {O}"),
    Reader("MLPerf JSON", "mlperf", "*.json", json_damaged, "import {X} --out {O}"),
    Reader("MLPerf config", "mlperf", "dlio_config/*.yaml", lines_damaged, "import {X} --out {O}"),
    Reader("seeds", "seeds", "case_*/*", bytes_damaged, "generate {O} --recipe tiny --files 1 --seeds {X}"),
]

DLIO_YAML = """model: unet3d
framework: pytorch
workflow: {generate_data: False, train: True, checkpoint: False}
dataset:
  data_folder: data/unet3d/
  format: npz
  num_files_train: 168
  num_samples_per_file: 1
  record_length_bytes: 146600628
  record_length_bytes_stdev: 68341808
reader:
  data_loader: pytorch
  batch_size: 7
  read_threads: 4
  file_shuffle: seed
  sample_shuffle: seed
train:
  epochs: 5
  computation_time: 0.636
metric:
  au: 0.90
"""


@pytest.fixture(scope="session")
def specimens(tmp_path_factory) -> Path:
    """One small intact folder of each kind, made by the commands themselves."""
    folder = tmp_path_factory.mktemp("specimens")

    def done(*words: object) -> None:
        end = feedrate(*words)
        assert end.status == 0, end.err

    for form in FORMATS:
        many = ("--set", "samples_per_file=3") if form in MANY else ()
        settings = (
            "--set",
            f"format={form}",
            "--set",
            "size.bytes_mean=300kB",
            "--set",
            "size.bytes_sd=20kB",
        )
        done("generate", folder / form, "--recipe", "tiny", "--files", 3, *settings, *many)
    for form in FOREIGN:
        (folder / f"foreign-{form}" / "train").mkdir(parents=True)
        for sample in (folder / form).glob("sample_*"):
            shutil.copy(sample, folder / f"foreign-{form}" / "train")
    done("generate", folder / "trained", "--recipe", "tiny", "--files", 32)
    done(
        "run",
        folder / "trained",
        "--workload",
        "unet3d-tiny",
        "--loader",
        "direct",
        "-n",
        2,
        "--steps",
        3,
        "--out",
        folder / "result",
    )
    shutil.rmtree(folder / "trained")
    toml = folder / "toml"
    toml.mkdir()
    shutil.copy(ROOT / "workloads" / "unet3d-a100.toml", toml / "workload.toml")
    shutil.copy(ROOT / "datasets" / "kits19" / "recipe.toml", toml / "recipe.toml")
    shutil.copy(sorted((ROOT / "results" / "systems").glob("*.toml"))[0], toml / "system.toml")
    shutil.copy(ROOT / "workloads" / "checkpoints" / "llama3-8b.toml", toml / "checkpoint.toml")
    (toml / "dlio.yaml").write_text(DLIO_YAML)
    done("export", "--mlperf", folder / "result", "--out", folder / "exported")
    run = next(path.parent for path in (folder / "exported").rglob("summary.json"))
    shutil.copytree(run, folder / "mlperf")
    seeds = folder / "seeds" / "case_00000"
    seeds.mkdir(parents=True)
    _nifti_pair(seeds)
    return folder


def _nifti_pair(folder: Path) -> None:
    """A case as KiTS19 has it: 24 x 32 x 32 voxels."""
    import nibabel
    import numpy as np

    random = np.random.default_rng(7)
    voxels = random.normal(0, 300, (24, 32, 32)).astype(np.int16)
    labels = (voxels > 250).astype(np.uint8)
    for name, array in (("imaging", voxels), ("segmentation", labels)):
        nibabel.save(nibabel.Nifti1Image(array, np.diag([3.0, 0.8, 0.8, 1.0])), folder / f"{name}.nii.gz")


def case(reader: Reader, specimens: Path, work: Path, seed: str) -> str:
    """Run one case; what is wrong, empty when nothing is."""
    random = Random(seed)
    copy = work / "case"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    shutil.copytree(specimens / reader.folder, copy)
    victim = random.choice(sorted(path for path in copy.glob(reader.pattern) if path.is_file()))
    before = victim.read_bytes()
    after = reader.damage(before, random)
    victim.write_bytes(after)
    listing = {path for path in copy.rglob("*") if path.is_file()}
    for number, words in enumerate(reader.commands):
        out = work / f"out-{number}"
        named = [word.format(X=copy, F=victim, O=out) for word in words.split()]
        done = forked(named, work, memory=reader.memory)
        wrong = complaint(done)
        if not wrong and reader.finds and number == 0 and after != before and done.status == 0:
            wrong = "the damage was not found"
        if not wrong and "\x1b[31m" in done.out + done.err:
            wrong = "an escape sequence of the file reached the terminal"
        lost = {path for path in listing if not path.exists()}
        if not wrong and lost:
            wrong = f"files are gone: {sorted(lost)}"
        if wrong:
            return f"FEEDRATE_FAULTS_SEED={seed}: {reader.name}: feedrate {' '.join(named)[-200:]}: {wrong}"
    return ""


@pytest.fixture(scope="session")
def warm(specimens, tmp_path_factory) -> None:
    """What forks should not each do again: the modules of all commands, and the simulator's machine code."""
    assert feedrate("plan", "--system", "weka-performance").status == 0
    warnings.simplefilter("ignore", DeprecationWarning)
    work = tmp_path_factory.mktemp("warm")
    for reader in READERS:
        for words in commands(reader, specimens, work / reader.name.replace(" ", "-")):
            load_modules_of(words, work)


def commands(reader: Reader, specimens: Path, work: Path) -> list[list[str]]:
    """The commands of `reader` on a fresh copy of its specimens in `work`, undamaged."""
    shutil.rmtree(work, ignore_errors=True)
    copy = work / "case"
    shutil.copytree(specimens / reader.folder, copy)
    victim = sorted(path for path in copy.glob(reader.pattern) if path.is_file())[0]
    return [
        [word.format(X=copy, F=victim, O=work / f"out-{number}") for word in words.split()]
        for number, words in enumerate(reader.commands)
    ]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_file_breaks_a_command(reader, specimens, warm, tmp_path):
    wrong = [case(reader, specimens, tmp_path / "w", f"{SEED}/{number}") for number in range(SHORT)]
    assert not any(wrong), "\n".join(filter(None, wrong))


UNSUMMED = ("hdf5", "parquet")
"""Files of many samples that hold bytes without a sum: samples themselves, or what no read asks for."""
LOADED = ("npz", "npy", "nii", "nii.gz", "hdf5", "raw", "tfrecord", "parquet", "jpeg")


@pytest.mark.parametrize("form", LOADED)
@pytest.mark.parametrize("verify", [True, False], ids=["verified", "unverified"])
def test_a_loader_says_what_is_damaged_or_reads_right(form, verify, specimens, tmp_path):
    """In the process itself: a reader thread has nothing else to give than bytes or an error of ours."""
    copy = tmp_path / "data"
    shutil.copytree(specimens / form, copy)
    dataset = open_dataset(copy)
    many = dataset.manifest.samples_per_file
    spec = LoaderSpec(
        batch_size=1, workers=2, prefetch=2, block_bytes=2**16, crop=(8, 8, 8), stall_timeout=20
    )
    files = sorted(copy.glob("sample_*"))
    contents = {path: path.read_bytes() for path in files}
    for number in range(SHORT):
        random = Random(f"{SEED}/{form}/{number}")
        victim = random.choice(files)
        after = bytes_damaged(contents[victim], random)
        victim.write_bytes(after)
        checksums = dataset.rows()["crc"] if verify else None
        with closing(
            make_loader("direct", spec, dataset.store, dataset.manifest, checksums=checksums)
        ) as loader:
            portions = [Portion(many, (Read(file, 0, many),)) for file in range(len(dataset.manifest.names))]
            try:
                list(loader.read(portions))
                wrong = verify and after != contents[victim] and form not in UNSUMMED
            except (DatasetError, StorageError):
                wrong = False
        assert not wrong, (
            f"FEEDRATE_FAULTS_SEED={SEED}: {form}, case {number}: {victim.name} was read as right"
        )
        victim.write_bytes(contents[victim])


def each_in_turn(
    readers: list[Reader], run: Callable[[Reader, int], str], seconds: float
) -> dict[str, list[str]]:
    """Cases of all classes in turn until the time is over; for each class what went wrong, case by case."""
    found: dict[str, list[str]] = {reader.name: [] for reader in readers}
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for reader in readers:
            found[reader.name].append(run(reader, number))
        number += 1
    return found


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_campaign(specimens, warm, tmp_path, capsys):
    found = each_in_turn(
        READERS,
        lambda reader, number: case(reader, specimens, tmp_path / "w", f"{SEED}/{number}"),
        LONG_SECONDS,
    )
    with capsys.disabled():
        print(f"\nseed {SEED}\n{'class of fault':32} {'cases':>7} {'failures':>8}")
        for name, ends in (*found.items(), ("all", list(chain(*found.values())))):
            print(f"{name:32} {len(ends):7,} {sum(map(bool, ends)):8,}")
    wrong = [line for cases in found.values() for line in cases if line]
    assert not wrong, "\n".join(wrong[:60])


def test_a_complaint_is_what_it_says():
    """The judge itself: what it must not let pass."""
    assert "traceback" in complaint(Done(1, "", "Traceback (most recent call last):\nValueError: x", 0.1))
    assert "hang" in complaint(Done(-1, "", "hung for 20 s", 20.0))
    assert "signal" in complaint(Done(-6, "", "", 0.1))
    assert "0 lines" in complaint(Done(1, "", "", 0.1))
    assert not complaint(Done(0, "fine", "", 0.1))
    assert not complaint(Done(3, "", "feedrate: error: no", 0.1))
