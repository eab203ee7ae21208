"""Own before you delete: what feedrate did not write is the same after any of its commands."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest
from command import Done
from faults.harness import run

from emulator.config.recipe import load_recipe
from emulator.dataset.journal import Journal
from emulator.dataset.manifest import MANIFEST
from emulator.dataset.owned import PLAN, Begun, look
from emulator.errors import DatasetError, SpecError
from emulator.files import temporary_name
from emulator.plugins.baseline.fio import FioFolder
from emulator.plugins.checkpoint.files import MARKER, Marker, WrittenFile, begin, clean, commit, remove
from emulator.plugins.kits.payload import prepare as prepare_seeds
from emulator.plugins.recorder.job import prepare
from emulator.record.out import ResultFolder, read_result
from emulator.record.result import new_result
from emulator.storage.folder import FolderStore

TINY = ("--recipe", "tiny", "--files", "3", "--no-fsync", "--threads", "1", "--set", "size.bytes_mean=300kB",
        "--set", "size.bytes_sd=20kB", "--set", "size.bytes_min=200kB")  # fmt: skip


GENERATE = TINY
pytestmark = pytest.mark.usefixtures("warm")


def tree(folder: Path) -> dict[str, bytes | str | None]:
    """Every name below `folder` with its bytes, the target of a link, or None for a folder."""

    def content(path: Path) -> bytes | str | None:
        if path.is_symlink():
            return str(path.readlink())
        return path.read_bytes() if path.is_file() else None

    return {str(path.relative_to(folder)): content(path) for path in sorted(folder.rglob("*"))}


def put(path: Path, content: bytes | str = b"somebody's") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def begun_of(store: FolderStore) -> Begun:
    """The plan.json with which the finished dataset at `store` was begun."""
    dataset = look(store).dataset
    assert dataset is not None and dataset.manifest.plan is not None
    return Begun(plan=dataset.manifest.plan, identity=dataset.manifest.identity)


def refused(done: Done, *said: str) -> None:
    line = done.one_line()
    assert done.status in (2, 3, 4) and all(word in line for word in said), line


# ---- A dataset of ours, and files of others in it.


def test_generate_again_leaves_partial_files_of_others(data: Path, tmp_path: Path) -> None:
    theirs = [put(data / "mine/download.iso.part"), put(data / "checkpoint-000001.7.part/rank")]
    theirs.append(put(data / f"sample_0000000.npz.{socket.gethostname()}-1-0123456789abcdef.part"))
    (data / "sample_0000001.npz").unlink()
    done = run(tmp_path, "generate", data, *TINY)
    assert done.status == 0 and "made 1 file" in done.out, done.err
    assert run(tmp_path, "generate", data, *TINY, "--seed", 1, "--force").status == 0
    assert all(path.read_bytes() == b"somebody's" for path in theirs)


def test_force_never_removes_adopted_samples(made: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    for number, sample in enumerate(sorted(made.glob("sample_*"))):
        shutil.copy(sample, mine / f"sample_{number:07d}.npz")
    assert run(tmp_path, "adopt", mine).status == 0
    before = tree(mine)
    for words in (("--force",), ("--force", "--seed", "1"), ()):
        refused(run(tmp_path, "generate", mine, *TINY, *words), str(mine))
    assert tree(mine) == before


@pytest.mark.parametrize(
    "manifest", [b'{"id": 1}\n{"id": 2}\n', b'{"files": 3}', b"", b"\xff\xfe", b"[1, 2]", None]
)
@pytest.mark.parametrize("state", [False, True], ids=["", "with .feedrate"])
def test_a_foreign_folder_is_refused_with_and_without_force(
    tmp_path: Path, manifest: bytes | None, state: bool
) -> None:
    mine = tmp_path / "mine"
    for name in (
        "sample_0000001.npz",
        "train/a.tfrecord",
        "samples-0123abcd.npy",
        "x.part",
        "0001/sample_1.npz",
    ):
        put(mine / name)
    for name in (".feedrate/journal-000000", ".feedrate/notes") if state else ():
        put(mine / name)
    if manifest is not None:
        put(mine / MANIFEST, manifest)
    before = tree(mine)
    for words in ((), ("--force",), ("--force", "--layout", "dlio"), ("--subfolders", "2")):
        refused(run(tmp_path, "generate", mine, *TINY, *words), str(mine))
    assert tree(mine) == before


def test_what_is_in_the_way_is_listed_and_stays(data: Path, tmp_path: Path) -> None:
    """An extension would give the user's file the bytes of a sample."""
    put(data / "sample_0000004.npz")
    before = tree(data)
    more = [word if word != "3" else "6" for word in TINY]
    refused(run(tmp_path, "generate", data, *more), "sample_0000004.npz", "in the way")
    refused(run(tmp_path, "generate", data, *more, "--seed", 2, "--force"), "sample_0000004.npz")
    assert tree(data) == before


def test_force_removes_only_files_of_the_size_that_was_recorded(data: Path, tmp_path: Path) -> None:
    put(data / "sample_0000001.npz")
    before = tree(data)
    refused(run(tmp_path, "generate", data, *TINY, "--seed", 1, "--force"), "sample_0000001.npz")
    assert tree(data) == before


def test_force_on_an_unfinished_dataset(data: Path, tmp_path: Path) -> None:
    """Journalled files go; one that no journal names may be somebody's."""
    store, held = FolderStore(data), look(FolderStore(data))
    assert held.dataset is not None
    rows = held.dataset.rows
    begun = begun_of(store)
    store.delete([MANIFEST, held.dataset.table])
    store.put(PLAN, begun.text())
    with Journal(store, 0) as journal:
        for index in range(2):
            journal.add(index, int(rows["bytes"][index]), int(rows["crc"][index]))
    before = tree(data)
    refused(run(tmp_path, "generate", data, *TINY, "--seed", 1, "--force"), "sample_0000002.npz")
    assert {k: v for k, v in tree(data).items() if k != ".feedrate/lock"} == {
        k: v for k, v in before.items() if k != ".feedrate/lock"
    }
    (data / "sample_0000002.npz").unlink()
    assert run(tmp_path, "generate", data, *TINY, "--seed", 1, "--force").status == 0
    assert run(tmp_path, "verify", data).status == 0


@pytest.mark.parametrize("content", [b"", b"{", b'{"feedrate": "dataset"}', b'{"id": 1}\n{"id": 2}\n'])
def test_beside_a_damaged_manifest_nothing_is_changed(data: Path, tmp_path: Path, content: bytes) -> None:
    put(data / MANIFEST, content)
    before = tree(data)
    for words in (("generate", data, *TINY), ("generate", data, *TINY, "--force"), ("verify", data)):
        refused(run(tmp_path, *words), MANIFEST)
    assert tree(data) == before


def test_a_refused_generate_leaves_nothing(tmp_path: Path) -> None:
    unreadable = tmp_path / "seeds/case_00000"
    put(unreadable / "imaging.nii.gz", "no volume"), put(unreadable / "segmentation.nii.gz", "no volume")
    for words in (
        ("--size", "20TB", "--recipe", "kits19"),
        ("--recipe", "kits19", "--files", 3, "--seeds", unreadable.parent),
        ("--payload", "ct-realistic", "--seeds", tmp_path / "none"),
    ):
        done = run(tmp_path, "generate", tmp_path / "new/data", *words)
        refused(done)
        assert not (tmp_path / "new").exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(run(tmp_path, "generate", empty, "--recipe", "kits19", "--size", "20TB"), "missing")
    assert tree(empty) == {}
    assert run(tmp_path, "generate", empty, *TINY).status == 0


def test_a_lock_that_is_somebody_elses_stays(data: Path, tmp_path: Path) -> None:
    lock = put(data / ".feedrate/lock", "keep out")
    refused(run(tmp_path, "generate", data, *TINY), str(lock))
    assert lock.read_text() == "keep out"


# ---- OUT.


def result(kind: str = "run"):
    return new_result(
        kind, command=("feedrate",), workload={}, dataset={}, storage={}, loader="direct", environment={}
    )  # fmt: skip


QUICK = ("plan", "--system", "weka-performance", "--workload", "unet3d-tiny")


@pytest.mark.parametrize("name", ["run.json", "steps.parquet", "failure.txt", "spool/rank-00000.steps", "x"])
@pytest.mark.parametrize("content", [b"", b'{"mine": 1}', b"PAR1"])
def test_force_replaces_no_files_of_others_in_out(tmp_path: Path, name: str, content: bytes) -> None:
    out = tmp_path / "out"
    put(out / name, content)
    before = tree(out)
    refused(run(tmp_path, *QUICK, "--out", out, "--force"), str(out))
    assert tree(out) == before


@pytest.mark.parametrize("name", ["steps.parquet", "spool/rank-00003.steps", "fio/001-a/h.json"])
def test_force_refuses_when_a_result_of_ours_has_files_of_others(tmp_path: Path, name: str) -> None:
    ResultFolder.create(tmp_path / "out", result(), force=False).complete()
    put(tmp_path / "out" / name, b"x" * 1000)
    before = tree(tmp_path / "out")
    refused(run(tmp_path, *QUICK, "--out", tmp_path / "out", "--force"), name)
    assert tree(tmp_path / "out") == before


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("name", ["spool/notes.steps", "spool/part-00000.steps", "failure.txt"])
def test_neither_force_nor_resume_removes_a_file_because_of_its_name_or_size(
    tmp_path: Path, name: str, linked: bool
) -> None:
    out = tmp_path / "out"
    kept = ResultFolder.create(out, result("sweep"), force=False)
    kept.close()
    theirs = tmp_path / "theirs"
    put(theirs / Path(name).name, "my notes\n")
    if linked and name.startswith("spool"):
        (out / "spool").symlink_to(theirs)
    elif linked:
        (out / name).symlink_to(theirs / name)
    else:
        put(out / name, "my notes\n")
    before = tree(out), tree(theirs)
    refused(run(tmp_path, *QUICK, "--out", out, "--force"), name)
    with pytest.raises(SpecError, match=name):
        ResultFolder.resume(out, kept.result)
    assert (tree(out), tree(theirs)) == before


def test_force_removes_nothing_through_a_link(data: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (data / ".feedrate").symlink_to(tmp_path / "elsewhere")
    store, dataset = FolderStore(data), look(FolderStore(data)).dataset
    assert dataset is not None
    store.put(PLAN, begun_of(store).text())
    store.put(".feedrate/journal-000000", b"")
    before = tree(tmp_path)
    refused(run(tmp_path, "generate", data, *TINY, "--seed", 1, "--force"), "link", ".feedrate")
    assert {name for name in before if "elsewhere/" in name} <= tree(tmp_path).keys()


@pytest.mark.parametrize("name", ["workload.toml", "parts/notes.txt", "profile.parquet"])
def test_record_removes_no_file_because_of_its_name(tmp_path: Path, name: str) -> None:
    put(tmp_path / "job" / name, "# mine\n")
    before = tree(tmp_path)
    with pytest.raises(SpecError, match="no recording"):
        prepare(tmp_path / "job", force=True)
    assert tree(tmp_path) == before


def test_out_is_locked_while_it_is_filled(tmp_path: Path) -> None:
    folder = ResultFolder.create(tmp_path / "out", result(), force=False)
    for words in (("--force",), ()):
        refused(run(tmp_path, *QUICK, "--out", tmp_path / "out", *words), str(tmp_path / "out"))
    assert read_result(tmp_path / "out") == folder.result
    for call in (ResultFolder.create, ResultFolder.resume):
        with pytest.raises(SpecError, match=f"in use: process {os.getpid()} on"):
            call(tmp_path / "out", folder.result, **({"force": True} if call == ResultFolder.create else {}))
    folder.complete()
    ResultFolder.create(tmp_path / "out", result(), force=True).complete()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run.json"]


# ---- Satellites.


def test_checkpoints_of_others_stay(tmp_path: Path) -> None:
    ours = begin(tmp_path, 1, "0123abcd")
    for name in ("all-mp_000-model", "1-model", MARKER):
        put(temporary_name(ours / name))
    put(ours / "all-mp_000-model")
    put(tmp_path / "linked/all-mp_000-model")
    (tmp_path / "checkpoint-000005.7.part").symlink_to(tmp_path / "linked")
    put(tmp_path / "linked/owner.json", (ours / "owner.json").read_bytes())
    theirs = [
        put(begin(tmp_path, 6, "7") / "notes.txt"),
        put(tmp_path / "checkpoint-000002.0123abcd.part/notes.txt"),
        put(tmp_path / "checkpoint-mine.part/all-mp_000-model"),
        put(begin(tmp_path, 3, "7") / "sub/all-mp_000-model"),
        put(tmp_path / "checkpoint-000004/checkpoint.json", "{}"),
    ]
    (tmp_path / "mine.part").mkdir()
    before = tree(tmp_path)
    assert clean(tmp_path) == [ours.name] and not ours.exists()
    remove(tmp_path / "checkpoint-000004")
    assert {**before, **tree(tmp_path)} == before and all(path.exists() for path in theirs)


def test_a_checkpoint_with_a_file_of_another_size_stays(tmp_path: Path) -> None:
    shard = WrittenFile(name="rank0", size=4, crc=0)
    part = begin(tmp_path, 3, "run")
    put(part / "rank0", "data")
    commit(part, 3, Marker(model="m", ranks=1, data=1, scale="1", seed=0, files=((shard,),)))
    put(tmp_path / "checkpoint-000003/rank0", "somebody's work")
    before = tree(tmp_path)
    remove(tmp_path / "checkpoint-000003")
    assert tree(tmp_path) == before
    put(tmp_path / "checkpoint-000003/rank0", "data")
    remove(tmp_path / "checkpoint-000003")
    assert tree(tmp_path) == {}


def test_checkpoints_that_were_cut_off_at_their_first_or_last_step_go(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-000001.run.part").mkdir()
    (tmp_path / "checkpoint-000002.removed.part").mkdir()
    put(tmp_path / "checkpoint-000003.run.part/owner.json", "")
    assert len(clean(tmp_path)) == 3 and tree(tmp_path) == {}


def test_fio_takes_no_file_of_others(tmp_path: Path) -> None:
    theirs = put(tmp_path / "h/job0.dat")
    with pytest.raises(SpecError, match="job0.dat"):
        FioFolder(tmp_path / "h")
    assert tree(tmp_path) == {"h": None, "h/job0.dat": b"somebody's"}
    theirs.unlink()


def test_fio_s_files_of_a_killed_run_go_and_kept_ones_are_known(tmp_path: Path) -> None:
    folder = FioFolder(tmp_path / "f/h", keep=True)
    with pytest.raises(SpecError, match=f"in use: process {os.getpid()}"):
        FioFolder(tmp_path / "f/h")
    put(tmp_path / "f/h/job0.dat")
    folder.close()
    theirs = put(tmp_path / "f/h/notes.txt")
    with pytest.raises(SpecError, match="notes.txt"):
        FioFolder(tmp_path / "f/h")
    assert tree(tmp_path) == {"f": None, "f/h": None, "f/h/notes.txt": b"somebody's"}
    theirs.unlink()
    FioFolder(tmp_path / "f/h").close()
    assert tree(tmp_path) == {}


def test_seeds_take_no_place_of_others(tmp_path: Path) -> None:
    spec = load_recipe("tiny", ["size.bytes_min=20kB", "size.bytes_mean=40kB", "size.min_edge=8"]).size
    made = prepare_seeds(tmp_path / "cache", None, spec)
    (place,) = (tmp_path / "cache").iterdir()
    (place / "seeds.json").unlink()
    before = tree(tmp_path)
    with pytest.raises(DatasetError, match="did not make"):
        prepare_seeds(tmp_path / "cache", None, spec)
    assert tree(tmp_path) == before
    shutil.rmtree(place)
    victim = put(tmp_path / "victim")
    assert prepare_seeds(tmp_path / "cache", None, spec) == made
    (place / "0000_x.npy").unlink()
    (place / "0000_x.npy").symlink_to(victim)
    (place / "0000_y.npy").unlink()
    assert prepare_seeds(tmp_path / "cache", None, spec) == made
    assert victim.read_bytes() == b"somebody's" and not (place / "0000_x.npy").is_symlink()
