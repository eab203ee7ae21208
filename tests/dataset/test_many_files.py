"""Nothing that is kept of each file is large: names as bytes, rows mapped, tasks in windows."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.dataset.adopt import _name, _packed, _size
from emulator.dataset.manifest import Listed, Manifest, Names, open_dataset, write_manifest
from emulator.dataset.progress import by_threads
from emulator.dataset.verify import extra_files
from emulator.storage.folder import FolderStore

NAMES = st.text(st.characters(exclude_characters="\0/", exclude_categories=("Cs",)), min_size=1, max_size=30)


@given(st.lists(NAMES, max_size=20))
def test_listed_names_are_the_names(names):
    listed = Listed(names)
    assert list(listed) == names and listed == Listed(names)
    assert listed[1:3] == names[1:3]
    with pytest.raises(IndexError):
        listed[len(names)]


@given(st.lists(st.tuples(NAMES, st.integers(0, 2**60)), max_size=20))
def test_a_file_as_one_string_has_its_name_and_its_size(files):
    packed = [_packed(*file) for file in files]
    assert [(_name(file), _size(file)) for file in packed] == files


def test_numbers_in_names_sort_by_value_and_before_letters():
    names = ["a10", "a9", "a", "b1", "a9b", "10", "9", "a09c"]
    order = [_name(file) for file in sorted(_packed(name, 1) for name in names)]
    assert order == ["9", "10", "a", "a9", "a9b", "a09c", "a10", "b1"]


def test_an_error_ends_the_threads_and_order_is_kept():
    assert list(by_threads(lambda index: -index, np.arange(10_000), 4)) == [-i for i in range(10_000)]

    def fail(index):
        if index == 5000:
            raise ValueError(index)

    with pytest.raises(ValueError, match="5000"):
        list(by_threads(fail, np.arange(10_000), 4))


def test_the_shares_of_extra_files_are_all_of_them(tmp_path):
    names = Names(9, ".npz", 3)
    rows = np.zeros(9, [("bytes", "<i8"), ("crc", "<u4"), ("shape", "<u4", (3,))])
    rows["bytes"] = 1
    extra = ["0000/sample_0000099.npz", "0001/x", "0002/sample_0000000.npz", "0009/deep/y", "top"]
    for name in [*names, *extra]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    made = Manifest(format="npz", recipe="x", seed=0, names=names, sizes=rows["bytes"].copy(), subfolders=3)
    write_manifest(FolderStore(tmp_path), made, rows)
    dataset = open_dataset(tmp_path)
    assert [fault.name for fault in extra_files(dataset)] == extra
    shares = [fault.name for share in range(4) for fault in extra_files(dataset, share, 4)]
    assert sorted(shares) == extra


def test_a_million_names_take_little():
    listed = Listed(f"img_{number}.bin" for number in range(1000))
    assert len(listed._bytes) + listed._ends.nbytes < 1000 * 24 < sum(map(sys.getsizeof, listed))
