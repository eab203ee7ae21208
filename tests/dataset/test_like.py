"""A dataset like a folder that somebody has."""

from __future__ import annotations

import os

import numpy as np
import pytest
from command import feedrate

from emulator.dataset import like
from emulator.dataset.manifest import Names, open_dataset
from emulator.errors import DatasetError
from emulator.storage.folder import FolderStore


def make(folder, sizes, leaves=("a/x", "a/y", "b/z")):
    for number, size in enumerate(sizes):
        leaf = folder / leaves[number % len(leaves)]
        leaf.mkdir(parents=True, exist_ok=True)
        (leaf / f"mrs_smith_{number}.dcm").write_bytes(os.urandom(size))


def test_files_sizes_and_tree_are_like_the_folders_and_names_are_nobodys(tmp_path):
    rng = np.random.default_rng(1)
    sizes = sorted(int(size) for size in rng.lognormal(9, 0.8, 300))
    make(tmp_path / "theirs", sizes)
    (tmp_path / "theirs" / "empty").write_bytes(b"")
    done = feedrate("generate", tmp_path / "ours", "--like", tmp_path / "theirs")
    assert done.status == 0 and "1 empty files are left out" in done.err
    found = open_dataset(FolderStore(tmp_path / "ours")).manifest
    ours = sorted(int(size) for size in found.sizes)
    assert len(ours) == 300 and abs(sum(ours) / sum(sizes) - 1) < 0.02
    for share in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert np.quantile(ours, share) == pytest.approx(np.quantile(sizes, share), rel=0.1)
    names = list(found.names)
    assert len({name.rpartition("/")[0] for name in names}) == 3
    assert {name.count("/") for name in names} == {2}
    assert not any("smith" in str(path) for path in (tmp_path / "ours").rglob("*"))
    assert feedrate("verify", tmp_path / "ours").status == 0
    again = feedrate("generate", tmp_path / "ours", "--like", tmp_path / "theirs")
    assert again.status == 0 and "nothing was made" in again.out


def test_a_sample_of_sizes_stands_for_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr(like, "SAMPLED", 100)
    make(tmp_path, range(1000, 2000))
    told = []
    found = like.look_at(tmp_path, content=False, progress=lambda files, size: told.append(files))
    assert (found.files, found.bytes, told[-1]) == (1000, sum(range(1000, 2000)), 1000)
    assert (found.quantiles[0], found.quantiles[-1]) == (1000, 1999)
    assert found.quantiles[128] == pytest.approx(1500, abs=150)


def test_compression_is_measured_when_asked_for(tmp_path):
    (tmp_path / "zeros").write_bytes(bytes(500_000))
    (tmp_path / "random").write_bytes(os.urandom(500_000))
    found = like.look_at(tmp_path, content=True, progress=lambda files, size: None)
    assert found.ratio == pytest.approx(2, rel=0.05) and found.folders == 0
    with pytest.raises(DatasetError, match="no files"):
        (tmp_path / "none").mkdir()
        like.look_at(tmp_path / "none", content=False, progress=lambda files, size: None)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_leaves_of_a_tree_are_different_and_deep(depth):
    names = Names(5000, ".bytes", 1000, "", depth)
    leaves = {names.leaf(number) for number in range(1000)}
    assert len(leaves) == 1000 and {leaf.count("/") for leaf in leaves} == {depth - 1}
    assert len({leaf.split("/")[0] for leaf in leaves}) <= round(1000 ** (1 / depth)) + 1
