"""Nothing large is kept of each file: rows and names stay where they lie, tasks come in windows."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.config.recipe import load_recipe
from emulator.dataset.manifest import MANIFEST, Manifest, open_dataset, write_manifest
from emulator.dataset.names import Listed
from emulator.dataset.plan import DatasetPlan
from emulator.dataset.progress import by_threads
from emulator.dataset.table import ROW
from emulator.dataset.verify import extra_files
from emulator.errors import DatasetError, StorageError
from emulator.storage.folder import FolderStore

NAMES = st.text(st.characters(exclude_characters="\0/", exclude_categories=("Cs",)), min_size=1, max_size=30)


@given(st.lists(NAMES, max_size=20))
def test_listed_names_are_the_names(names):
    listed = Listed.of(names)
    assert list(listed) == names == [listed[index] for index in range(len(names))]
    assert listed[1:3] == names[1:3]
    with pytest.raises(IndexError):
        listed[len(names)]


def test_an_error_ends_the_threads_and_order_is_kept():
    assert list(by_threads(lambda index: -index, np.arange(10_000), 4)) == [-i for i in range(10_000)]

    def fail(index):
        if index == 5000:
            raise ValueError(index)

    with pytest.raises(ValueError, match="5000"):
        list(by_threads(fail, np.arange(10_000), 4))


def test_extra_files_are_listed(tmp_path):
    plan = DatasetPlan(recipe=load_recipe("tiny"), seed=0, files=9, subfolders=3)
    rows = np.zeros(9, ROW)
    rows["bytes"] = 1
    extra = ["0000/sample_0000099.npz", "0001/x", "0002/sample_0000000.npz", "0009/deep/y", "top"]
    for name in [*plan.names, *extra]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    made = Manifest(format="npz", plan=plan, names=plan.names, sizes=rows["bytes"].copy())
    write_manifest(FolderStore(tmp_path), made, rows)
    assert [fault.name for fault in extra_files(open_dataset(tmp_path))] == extra


def adopted(folder, names):
    rows = np.zeros(len(names), ROW)
    rows["bytes"] = np.arange(len(names)) + 1
    made = Manifest(format="bytes", names=Listed.of(names), sizes=rows["bytes"].copy())
    write_manifest(FolderStore(folder), made, rows)


def test_names_of_others_lie_in_the_table_and_not_in_the_manifest(tmp_path):
    names = [f"img_{number}.bin" for number in range(100_000)]
    adopted(tmp_path, names)
    assert (tmp_path / MANIFEST).stat().st_size < 1000
    dataset = pickle.loads(pickle.dumps(open_dataset(tmp_path)))
    assert list(dataset.manifest.names) == names and dataset.manifest.names[99_999] == names[-1]
    assert dataset.manifest.sizes[99_999] == 100_000
    with next(tmp_path.glob("samples-*.npy")).open("r+b") as table:
        table.truncate(1000)
    with pytest.raises(StorageError, match="became shorter"):
        dataset.manifest.sizes[99_999]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a", "../b"], "leaves the folder"), (["/a", "b"], "leaves the folder"),
        (["a\0", "b"], "leaves the folder"), (["a", "a"], "twice"), (["", "a"], "wrong layout"),
    ],
)  # fmt: skip
def test_hostile_names_in_a_table_are_one_line(tmp_path, names, said):
    adopted(tmp_path, names)
    with pytest.raises(DatasetError, match=said):
        open_dataset(tmp_path)
