"""Intact specimens of every kind of file that feedrate reads, and the commands that read them."""

from __future__ import annotations

import json
import operator
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random

from command import Done, feedrate
from faults.harness import complaint, contents, forked, load_modules_of, load_verbs, run
from faults.mutate import (
    Damage,
    bytes_damaged,
    gz_damaged,
    hdf5_damaged,
    json_damaged,
    lines_damaged,
    nifti_damaged,
    npy_damaged,
    npz_damaged,
    one_of,
    parquet_damaged,
    tfrecord_damaged,
)  # fmt: skip
from recorder.test_traces import trace

ROOT = Path(__file__).resolve().parents[2]
FORMATS = ("npz", "npy", "nii", "nii.gz", "hdf5", "raw", "tfrecord", "parquet", "jpeg")
MANY = ("hdf5", "tfrecord", "parquet")
SIZES = ("size.bytes_min=20kB", "size.min_edge=8", "size.bytes_mean=40kB", "size.bytes_sd=4kB")
"""Of samples of a few files of a few kB."""
UNSUMMED = ("hdf5", "parquet")
"""Files of many samples that hold bytes without a sum: samples themselves, or what no read asks for."""
FOREIGN = ("npz", "hdf5", "tfrecord", "parquet")


DAMAGES: dict[str, Damage] = {
    "npz": one_of(bytes_damaged, npz_damaged),
    "npy": one_of(bytes_damaged, npy_damaged),
    "nii": one_of(bytes_damaged, nifti_damaged),
    "nii.gz": one_of(bytes_damaged, nifti_damaged, gz_damaged(bytes_damaged)),
    "hdf5": one_of(bytes_damaged, hdf5_damaged),
    "tfrecord": one_of(bytes_damaged, tfrecord_damaged),
    "parquet": one_of(bytes_damaged, parquet_damaged),
    "raw": bytes_damaged,
    "jpeg": bytes_damaged,
}
"""Kinds of damage by format: any bytes, and its own fields."""


Finds = Callable[[bytes, bytes], bool]


def changes_json(before: bytes, after: bytes) -> bool:
    """True when it says something else now."""
    try:
        return bool(json.loads(before) != json.loads(after))
    except (ValueError, RecursionError):
        return True


class Reader:
    """A kind of file, and the commands that read it.

    `folder` of the specimens is copied for each case, one of its files that match `pattern` is damaged. In
    the commands {X} is the copy, {F} the damaged file, {O} a path that does not exist. `finds` says of bytes
    before and after whether the first command has to notice the change. `memory`: see forked.
    """

    def __init__(
        self,
        name: str,
        folder: str,
        pattern: str,
        damage: Damage,
        *commands: str,
        finds: Finds | None = None,
        memory: int | None = 4 * 2**30,
    ) -> None:
        self.name, self.folder, self.pattern, self.damage = name, folder, pattern, damage
        self.commands, self.finds, self.memory = commands, finds, memory


PLANNED = "run {X} --workload unet3d-tiny --dry-run -n 2 --mismatched-dataset"
GENERATE = "--recipe tiny --files 4 --dry-run"
READERS = [
    Reader("manifest.json", "npz", "manifest.json", json_damaged, "verify {X}", PLANNED,
           f"generate {{X}} {GENERATE}", finds=changes_json),
    Reader("table of samples", "npz", "samples-*.npy", one_of(bytes_damaged, npy_damaged), "verify {X}",
           PLANNED, finds=operator.ne),
    *(Reader(f"{form} in verify", form, "sample_*", DAMAGES[form], "verify {X}", finds=operator.ne)
      for form in FORMATS),
    *(Reader(f"{form} in adopt", f"foreign-{form}", "*/sample_*", DAMAGES[form], "adopt {X}", PLANNED)
      for form in FOREIGN),
    Reader("run.json", "result", "run.json", json_damaged, "report {X}", "compare {X} {X}",
           "plan {X} --workload unet3d-tiny"),
    Reader("run.json in export", "result", "run.json", json_damaged, "export --mlperf {X} --out {O}"),
    Reader("run.json on a page", "result", "run.json", json_damaged, "report {X} --html {O}", memory=None),
    Reader("steps.parquet", "result", "steps.parquet", DAMAGES["parquet"], "report {X}"),
    Reader("hosts.parquet", "result", "hosts.parquet", DAMAGES["parquet"], "report {X} --html {O}",
           memory=None),
    Reader("workload", "toml", "workload.toml", lines_damaged, "workloads {F}", "datasize --workload {F}"),
    Reader("recipe", "toml", "recipe.toml", lines_damaged, "generate {O} --recipe {F} --files 2 --dry-run"),
    Reader("system", "toml", "system.toml", lines_damaged, "efficiency --system {F}",
           "plan --system {F} --workload unet3d-tiny --accelerators 9"),
    Reader("model", "toml", "checkpoint.toml", lines_damaged,
           "checkpoint {O} --model {F} --dry-run --subset"),
    Reader("DLIO YAML", "toml", "dlio.yaml", lines_damaged, "import {F} --out {O}"),
    Reader("PyTorch trace", "trace", "trace.json", json_damaged, "import {F} --out {O} -w unet3d-tiny"),
    Reader("result of checkpoints", "checkpoints", "run.json", json_damaged, "report {X}", "compare {X} {X}"),
    Reader("MLPerf JSON", "mlperf", "*.json", json_damaged, "import {X} --out {O}"),
    Reader("MLPerf config", "mlperf", "dlio_config/*.yaml", lines_damaged, "import {X} --out {O}"),
    Reader("seeds", "seeds", "case_*/*", one_of(bytes_damaged, nifti_damaged),
           "generate {O} --recipe tiny --files 1 --seeds {X} --payload ct-realistic --no-fsync"),
]  # fmt: skip

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


def make_datasets(folder: Path) -> None:
    """A small intact dataset of each format."""
    load_verbs()
    for form in FORMATS:
        many = ("--set", "samples_per_file=3") if form in MANY else ()
        settings = [f"--set={one}" for one in (f"format={form}", *SIZES)]
        end = run(folder, "generate", folder / form, "--recipe", "tiny", "--files", 3, *settings, *many)
        assert end.status == 0, end.err


def make_specimens(folder: Path) -> None:
    """One small intact folder of each kind, made by the commands themselves."""

    def done(*words: object) -> None:
        starts_ranks = words[0] in ("run", "checkpoint")
        end = feedrate(*words) if starts_ranks else forked([str(word) for word in words], folder, memory=None)
        assert end.status == 0, end.err

    make_datasets(folder)
    for form in FOREIGN:
        (folder / f"foreign-{form}" / "train").mkdir(parents=True)
        for sample in (folder / form).glob("sample_*"):
            shutil.copy(sample, folder / f"foreign-{form}" / "train")
    done("generate", folder / "trained", "--recipe", "tiny", "--files", 32)
    trained = ("--workload", "unet3d-tiny", "--loader", "direct", "-n", 2, "--steps", 3)
    done("run", folder / "trained", *trained, "--out", folder / "result")
    written = folder / "checkpointed"
    written.mkdir()
    done(*("checkpoint", written, "--subset", "--ranks", 2, "--scale", "1/20000", "--writes", 1),
         *("--reads", 1, "--pause", "0s", "--out", folder / "checkpoints"))  # fmt: skip
    (folder / "trace").mkdir()
    (folder / "trace" / "trace.json").write_text(json.dumps(trace(batches=8)))
    toml = folder / "toml"
    toml.mkdir()
    shutil.copy(ROOT / "workloads" / "unet3d-a100.toml", toml / "workload.toml")
    shutil.copy(ROOT / "datasets" / "kits19" / "recipe.toml", toml / "recipe.toml")
    shutil.copy(ROOT / "results" / "systems" / "ai-2023-weka-6-nodes.toml", toml / "system.toml")
    shutil.copy(ROOT / "workloads" / "checkpoints" / "llama3-8b.toml", toml / "checkpoint.toml")
    (toml / "dlio.yaml").write_text(DLIO_YAML)
    done("export", "--mlperf", folder / "result", "--out", folder / "exported")
    summary = next((folder / "exported").rglob("summary.json"))
    shutil.copytree(summary.parent, folder / "mlperf")
    seeds = folder / "seeds" / "case_00000"
    seeds.mkdir(parents=True)
    _nifti_pair(seeds)


def _nifti_pair(folder: Path) -> None:
    """A case as KiTS19 has it: 24 x 32 x 32 voxels."""
    import nibabel
    import numpy as np

    random = np.random.default_rng(7)
    voxels = random.normal(0, 300, (24, 32, 32)).astype(np.int16)
    labels = (voxels > 250).astype(np.uint8)
    for name, array in (("imaging", voxels), ("segmentation", labels)):
        nibabel.save(nibabel.Nifti1Image(array, np.diag([3.0, 0.8, 0.8, 1.0])), folder / f"{name}.nii.gz")


def commands_of(reader: Reader, case: Path, victim: Path, work: Path) -> list[list[str]]:
    """The words of its commands, with these paths."""
    return [
        [word.format(X=case, F=victim, O=work / f"out-{number}") for word in words.split()]
        for number, words in enumerate(reader.commands)
    ]


def victims(reader: Reader, case: Path) -> list[Path]:
    """The files that may be damaged."""
    return sorted(path for path in case.glob(reader.pattern) if path.is_file())


def damaged_case(reader: Reader, specimens: Path, work: Path, random: Random, run: Run) -> str:
    """Run one case in the new folder `work`; what is wrong, empty when nothing is."""
    copy = work / "case"
    shutil.copytree(specimens / reader.folder, copy)
    victim = random.choice(victims(reader, copy))
    before = victim.read_bytes()
    after = reader.damage(before, random)
    victim.write_bytes(after)
    found = contents(copy)
    for number, words in enumerate(commands_of(reader, copy, victim, work)):
        done = run(words, work, memory=reader.memory)
        wrong = complaint(done)
        if not wrong and reader.finds and number == 0 and done.status == 0 and reader.finds(before, after):
            wrong = "the damage was not found"
        if not wrong and "\x1b[31m" in done.out + done.err:
            wrong = "an escape sequence of the file reached the terminal"
        now = contents(copy)
        if not wrong and (lost := [name for name, data in found.items() if now.get(name) != data]):
            wrong = f"files are gone or changed: {lost}"
        if not wrong and (left := list(work.rglob("*.part"))):
            wrong = f"temporary files are left: {left}"
        if wrong:
            return f"feedrate {' '.join(words)[-200:]}: {wrong}"
    return ""


def warm_up(specimens: Path, work: Path) -> None:
    """Import here what commands import as they run, so that forks need not each do it again."""
    warnings.simplefilter("ignore")
    for number, reader in enumerate(READERS):
        copy = work / str(number) / "case"
        shutil.copytree(specimens / reader.folder, copy)
        for words in commands_of(reader, copy, victims(reader, copy)[0], copy.parent):
            load_modules_of(words, work)


Run = Callable[..., Done]
"""`forked` or `inside`."""
