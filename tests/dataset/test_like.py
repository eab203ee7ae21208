"""A dataset like a folder that somebody has."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import pytest
from command import feedrate

from emulator.dataset import like
from emulator.dataset.manifest import open_dataset
from emulator.dataset.names import Names, Tree
from emulator.dataset.plan import DatasetPlan
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


def plan_like(folder) -> DatasetPlan:
    recipe, tree, _ = like.recipe_like(folder, "incompressible")
    return DatasetPlan(recipe=recipe, seed=3, files=recipe.files, tree=tree)


SMALL_AND_HUGE = {
    "two": [1_000, 9_000_000],
    "two huge among small": [*range(2_000, 5_000), 6_000_000, 6_100_000],
    "heavy tail": [int(size) for size in np.random.default_rng(1).lognormal(7, 2, 3_000)],
    "of two kinds": [1_000] * 1_200 + [50_000] * 1_300,
}


@pytest.mark.parametrize("name", SMALL_AND_HUGE)
def test_bytes_are_kept_within_a_percent_and_the_largest_files_exactly(name, tmp_path):
    theirs = sorted(max(1, size) for size in SMALL_AND_HUGE[name])
    for number, size in enumerate(theirs):
        with (tmp_path / str(number)).open("wb") as file:
            file.truncate(size)  # a file of holes
    plan = plan_like(tmp_path)
    ours = np.sort(plan.planned_bytes(np.arange(plan.files)))
    assert len(ours) == len(theirs) and abs(ours.sum() / sum(theirs) - 1) < 0.01
    assert ours[-1000:].tolist() == theirs[-1000:]
    mine, other = (
        np.quantile(sizes, np.linspace(0.02, 0.98, 49), method="lower") for sizes in (ours, theirs)
    )
    assert (np.abs(mine - other) > 0.15 * other).sum() <= 1, "at the border of two kinds one may differ"
    half = plan.planned_bytes(np.arange(plan.files // 2)).sum() * 2
    assert len(theirs) == 2 or abs(half / sum(theirs) - 1) < 0.3, "the largest are spread"


def test_files_a_folder_and_its_depth_are_kept(tmp_path):
    leaves = ["", "a", "b/c", *["b/c/d"] * 4, "e/f/g", *["e/f/h/i/j"] * 7]
    make(tmp_path, [100] * 150, leaves)
    plan = plan_like(tmp_path)
    for files, times in ((150, 1), (450, 3)):
        names = DatasetPlan(recipe=plan.recipe, seed=3, files=files, tree=plan.tree).names
        held = Counter(name.rpartition("/")[0] for name in names)
        found = sorted((leaf.count("/") + bool(leaf), count) for leaf, count in held.items() if leaf)
        assert found == sorted([(1, 10), (2, 10), (3, 40), (3, 10), (5, 70)] * times)
        assert held[""] == 10 * times and set(names.leaves()) == held.keys() - {""}


def test_a_sample_of_folders_stands_for_many(tmp_path, monkeypatch):
    monkeypatch.setattr(like, "MOST_FOLDERS", 10)
    make(tmp_path, [100] * 200, [f"{number % 3}/{number}" for number in range(100)])
    plan = plan_like(tmp_path)
    assert plan.tree is not None and len(plan.tree.depths) == 10
    assert len(set(plan.names.leaves())) == 100 and len(set(plan.names)) == 200


def test_compression_is_measured_when_asked_for(tmp_path):
    (tmp_path / "zeros").write_bytes(bytes(500_000))
    (tmp_path / "random").write_bytes(os.urandom(500_000))
    recipe, tree, _ = like.recipe_like(tmp_path, like.MEASURED)
    assert float(recipe.payload.removeprefix("ratio=")) == pytest.approx(2, rel=0.05) and tree is None
    with pytest.raises(DatasetError, match="no files"):
        (tmp_path / "none").mkdir()
        plan_like(tmp_path / "none")


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_leaves_of_a_tree_are_different_and_deep(depth):
    tree = Tree((depth,) * 1000, tuple(range(5, 5005, 5)))
    leaves = set(Names(5000, ".bytes", 0, "", tree).leaves())
    assert len(leaves) == 1000 and {leaf.count("/") for leaf in leaves} == {depth - 1}
    assert len({leaf.split("/")[0] for leaf in leaves}) <= round(1000 ** (1 / depth)) + 1
