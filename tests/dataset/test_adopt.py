"""`feedrate adopt`: datasets as DLIO generates them, and what cannot be one."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from command import feedrate

from emulator.dataset.manifest import MANIFEST, Manifest, read_manifest
from emulator.dataset.owned import LOCK, PLAN
from emulator.errors import FeedrateError
from emulator.plugins.adopt.adopt import adopt_samples, adopting, find_samples
from emulator.storage.folder import FolderStore

FILES = 12


def as_dlio(folder: Path, form: str = "npz", files: int = FILES, edge: int = 60) -> Path:
    """`files` files as DLIO 2.0 names and fills them: train/img_00_of_12.npz, an empty valid/."""
    (folder / "train").mkdir(parents=True)
    (folder / "valid").mkdir()
    random = np.random.default_rng(1)
    for number in range(files):
        records = random.integers(0, 255, (edge + number, edge, 1), dtype=np.uint8)
        name = folder / "train" / f"img_{number:0{len(str(files))}d}_of_{files}.{form}"
        if form == "npz":
            np.savez(name, x=records, y=[0])
        elif form == "npy":
            np.save(name, records)
        else:
            with h5py.File(name, "w") as file:
                file.create_dataset("records", data=records.transpose(2, 0, 1))
                file.create_dataset("labels", data=[0])
    return folder


def adopt(folder: Path, form: str = "", samples: int = 1) -> Manifest:
    """Adopt a folder as the command does."""
    with adopting(folder, form) as found:
        return adopt_samples(found, samples, 2, lambda files, size: None)


def test_a_folder_that_another_command_fills_is_not_adopted(tmp_path):
    """A generate that was stopped meanwhile replaced the manifest of the adopted files."""
    folder = as_dlio(tmp_path / "data")
    store = FolderStore(folder)
    with store.exclusive(LOCK):
        assert "in use: process" in feedrate("adopt", folder).one_line()
        store.put(PLAN, b"the plan of a generate that is killed")
    assert "is not finished" in feedrate("adopt", folder).one_line()
    assert not (folder / MANIFEST).exists()
    store.delete([PLAN])
    assert feedrate("adopt", folder).status == 0


@pytest.mark.parametrize(("form", "name"), [("npz", "npz"), ("npy", "npy-array"), ("hdf5", "hdf5")])
def test_what_dlio_generated(tmp_path, form, name):
    folder = as_dlio(tmp_path / "data", form)
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    adopt(folder)
    manifest = read_manifest(folder)
    assert manifest.format == name and len(manifest.names) == FILES
    assert manifest.names[3] == f"train/img_03_of_12.{form}"
    assert manifest.total == sum(len(data) for data in before.values())
    assert all(path.read_bytes() == data for path, data in before.items()), "the files stay as they are"


def test_files_of_many_samples(tmp_path):
    words = ("--recipe", "tiny", "--format", "tfrecord", "--files", 2, "--set", "samples_per_file=8")
    made = feedrate("generate", tmp_path, *words)
    assert made.status == 0, made.err
    (tmp_path / MANIFEST).unlink()
    assert adopt(tmp_path, samples=8).samples_per_file == 8
    other = as_dlio(tmp_path / "npz", files=2)
    with pytest.raises(FeedrateError, match="holds one sample a file, not 8"):
        adopt(other, samples=8)


def test_numbers_sort_by_value(tmp_path):
    for number in (10, 9, 100):
        np.savez(tmp_path / f"part{number}.npz", x=np.zeros((4, 4, 4), np.float32), y=np.zeros(64, np.uint8))
    assert list(find_samples(tmp_path).names) == ["part9.npz", "part10.npz", "part100.npz"]


def test_run_and_verify_take_them(tmp_path):
    folder = as_dlio(tmp_path / "data")
    (folder / "train" / "README").write_text("mine")
    done = feedrate("adopt", folder)
    assert done.status == 0 and "adopted 12 npz files" in done.out and "1 other file\n" in done.out
    words = "-w unet3d-tiny --mismatched-dataset --loader direct -n 2 --epochs 1"
    small = "accelerator.step_seconds=0.01 loader.batch_size=2 accelerator.step_batch_size=2"
    settings = (word for setting in small.split() for word in ("--set", setting))
    ran = feedrate("run", folder, *words.split(), *settings, "--out", tmp_path / "out")
    assert ran.status == 0, ran.err
    assert feedrate("verify", folder).status == 0
    damaged = folder / "train" / "img_05_of_12.npz"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    assert "img_05_of_12.npz: its bytes have changed" in feedrate("verify", folder).out
    again = feedrate("adopt", folder)
    assert again.status == 3 and "manifest.json already" in again.one_line()


def empty(folder: Path) -> None:
    for path in (folder / "train").iterdir():
        path.unlink()


def two_formats(folder: Path) -> None:
    np.save(folder / "train" / "other.npy", np.zeros(4))


def cut(folder: Path) -> None:
    path = folder / "train" / "img_07_of_12.npz"
    path.write_bytes(path.read_bytes()[:1000])


def no_bytes(folder: Path) -> None:
    (folder / "train" / "img_07_of_12.npz").write_bytes(b"")


def pickled(folder: Path) -> None:
    np.savez(folder / "train" / "img_07_of_12.npz", x=np.array([{"a": 1}], dtype=object), y=[0])


def text(folder: Path) -> None:
    (folder / "train" / "img_07_of_12.npz").write_text("hello " * 1000)


@pytest.mark.parametrize(
    "damage", [empty, two_formats, cut, no_bytes, pickled, text], ids=lambda damage: damage.__name__
)
def test_what_is_no_dataset_is_refused_and_nothing_written(tmp_path, damage):
    folder = as_dlio(tmp_path / "data")
    damage(folder)
    with pytest.raises(FeedrateError) as raised:
        adopt(folder)
    assert "\n" not in str(raised.value) and str(folder) in str(raised.value)
    assert not (folder / MANIFEST).exists() and not list(folder.glob("*.npy"))


def test_an_npz_of_x_alone_is_whole(tmp_path):
    for number, save in enumerate((np.savez, np.savez_compressed)):
        save(tmp_path / f"{number}.npz", x=np.arange(9.0))
    assert len(adopt(tmp_path).names) == 2


def test_half_of_a_pair_is_missing(tmp_path):
    for number in range(3):
        np.save(tmp_path / f"case_{number}_x.npy", np.zeros((1, 8, 8, 8), np.float32))
        np.save(tmp_path / f"case_{number}_y.npy", np.zeros((1, 8, 8, 8), np.uint8))
    assert len(find_samples(tmp_path).names) == 3
    (tmp_path / "case_1_y.npy").unlink()
    with pytest.raises(FeedrateError, match="case_1_y.npy is missing"):
        find_samples(tmp_path)


@pytest.mark.long
def test_the_torch_loader_takes_arrays_of_any_shape(tmp_path):
    folder = as_dlio(tmp_path / "data")
    adopt(folder)
    words = "-w unet3d-tiny --mismatched-dataset --loader torch -n 1 --steps 2"
    settings = ("--set", "accelerator.step_seconds=0.01", "--set", "loader.crop=[]")
    whole = feedrate("run", folder, *words.split(), *settings, "--out", tmp_path / "torch")
    assert whole.status == 0, whole.err
