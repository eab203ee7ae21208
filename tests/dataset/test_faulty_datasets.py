"""A dataset that something happened to: verify lists all of it, and --repair makes it again."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from command import feedrate
from faults.conftest import data, made, shim, warm
from faults.harness import feedrate_struck, forked, run

from emulator.dataset.manifest import MANIFEST, checksum_of, open_dataset
from emulator.dataset.owned import LOCK, PLAN
from emulator.errors import DatasetError, StorageError
from emulator.files import Owner
from emulator.record.out import RESULT, write_result
from emulator.record.result import new_result
from emulator.storage.folder import FolderStore

__all__ = ["data", "made", "shim", "warm"]
SIZES = ("size.bytes_mean=300kB", "size.bytes_sd=20kB", "size.bytes_min=200kB")
GENERATE = ("--recipe", "tiny", "--files", "8", "--subfolders", "2", "--threads", "1",
            *(f"--set={size}" for size in SIZES))  # fmt: skip
pytestmark = pytest.mark.usefixtures("warm")


def sample(data: Path, index: int) -> Path:
    return data / f"{index % 2:04d}/sample_{index:07d}.npz"


def harm(data: Path) -> dict[int, str]:
    """Each kind of fault, once; what verify should say of the sample of that index."""
    for index in range(7):
        sample(data, index).unlink()
    sample(data, 1).mkdir()
    os.mkfifo(sample(data, 2))
    outside = data.parent / "outside.npz"
    shutil.copy(sample(data, 7), outside)
    sample(data, 3).symlink_to(outside)
    sample(data, 4).hardlink_to(sample(data, 7))  # the bytes of another sample
    sample(data, 5).symlink_to(data.parent / "nowhere")
    sample(data, 6).write_bytes(b"")
    return {0: "missing", 1: "is a directory", 2: "is a pipe", 3: "leads out", 4: "sample_0000004",
            5: "missing", 6: "sample_0000006"}  # fmt: skip


def test_verify_lists_all_and_repair_makes_them_again(made: Path, data: Path, tmp_path: Path) -> None:
    said = harm(data)
    done = run(tmp_path, "verify", data)
    assert done.status == 3 and f"{len(said)} files of" in done.one_line()
    lines = {int(line.split("sample_")[1][:7]): line for line in done.out.splitlines() if "sample_" in line}
    assert lines.keys() == said.keys() and all(said[index] in line for index, line in lines.items()), done.out
    sample(data, 1).rmdir()
    done = run(tmp_path, "verify", data, "--repair")
    assert done.status == 0 and "7 files made again" in done.out, done.err
    assert run(tmp_path, "verify", data).status == 0
    assert all(sample(data, index).read_bytes() == sample(made, index).read_bytes() for index in range(8))
    assert (tmp_path / "outside.npz").read_bytes() == sample(made, 7).read_bytes()


def test_a_sample_of_another_size_is_not_read(data: Path, tmp_path: Path) -> None:
    os.truncate(sample(data, 3), 2**42)
    done = run(tmp_path, "verify", data)
    assert done.status == 3 and f"{2**42} bytes" in done.out, done.out


def test_a_plan_of_ten_million_files_is_summed_up_at_once(tmp_path: Path) -> None:
    words = ("--recipe", "tiny", "--files", 10_000_000)
    done = feedrate("generate", tmp_path / "data", *words, "--dry-run", timeout=30)
    assert done.status == 0 and "NOT ENOUGH" in done.out
    done = feedrate("generate", tmp_path / "data", *words, timeout=30)
    assert "are needed" in done.one_line() and not (tmp_path / "data").exists()


def test_repair_counts_no_leftover_that_it_removed(data: Path, tmp_path: Path) -> None:
    sample(data, 0).unlink()
    left = left_by_a_killed_process(data, sample(data, 0))
    done = run(tmp_path, "verify", data)
    assert done.status == 3 and f"{left.name}: extra" in done.out
    done = run(tmp_path, "verify", data, "--repair")
    assert done.status == 0 and not left.exists(), done.err


def test_repair_does_not_advise_itself_where_a_file_of_others_is_left(data: Path, tmp_path: Path) -> None:
    (data / "notes.txt").write_text("mine")
    done = run(tmp_path, "verify", data, "--repair")
    assert done.status == 3 and (data / "notes.txt").exists()
    assert "move away" in done.one_line() and "--repair" not in done.one_line()


def left_by_a_killed_process(data: Path, path: Path) -> Path:
    """A temporary file of `path`, and the lock of the process that wrote it."""
    with subprocess.Popen(["true"]) as process:
        pass
    (data / ".feedrate").mkdir(exist_ok=True)
    (data / LOCK).write_bytes(Owner(host=socket.gethostname(), pid=process.pid, started=1, nonce="x").line())
    left = path.with_name(f"{path.name}.{socket.gethostname()[:32]}-{process.pid}-0123456789abcdef.part")
    left.write_bytes(b"half")
    return left


def test_a_generate_that_was_killed_before_it_had_a_plan_goes_on(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    left = left_by_a_killed_process(data, data / PLAN)
    other = data / ".feedrate" / left.name.replace("0123456789abcdef", "x")
    other.write_bytes(b"somebody's")
    assert "holds no dataset" in run(tmp_path, "generate", data, *GENERATE).one_line() and left.exists()
    other.unlink()
    done = run(tmp_path, "generate", data, *GENERATE)
    assert done.status == 0 and not left.exists(), done.err


@pytest.mark.parametrize(
    ("verb", "name"),
    [("verify", MANIFEST), ("generate", MANIFEST), ("generate", PLAN), ("generate", "samples-0123abcd.npy")],
)
def test_a_pipe_in_place_of_a_record_is_one_line(tmp_path: Path, verb: str, name: str) -> None:
    (tmp_path / "data/.feedrate").mkdir(parents=True)
    os.mkfifo(tmp_path / "data" / name)
    done = run(tmp_path, verb, tmp_path / "data", *(GENERATE if verb == "generate" else ()))
    assert f"{name}): it is not a regular file" in done.one_line()


def test_a_folder_in_place_of_a_sample_stays(data: Path, tmp_path: Path) -> None:
    sample(data, 1).unlink()
    sample(data, 1).mkdir()
    for words in (("generate", data, *GENERATE), ("verify", data, "--repair")):
        said = run(tmp_path, *words).one_line()
        assert "sample_0000001.npz" in said and "in the way" in said
    sample(data, 1).rmdir()
    assert run(tmp_path, "verify", data, "--repair").status == 0
    sample(data, 1).unlink()
    sample(data, 1).mkdir()
    (sample(data, 1) / "mine").write_text("mine")
    for words in (("generate", data, *GENERATE), ("verify", data, "--repair")):
        assert "sample_0000001.npz/mine" in run(tmp_path, *words).one_line()
    assert (sample(data, 1) / "mine").read_text() == "mine"


@pytest.mark.parametrize(("call", "code"), [("read", "EIO"), ("open", "EMFILE")])
def test_files_that_cannot_be_read_are_not_called_wrong(data: Path, shim: Path, call: str, code: str) -> None:
    """The others are checked all the same."""
    sample(data, 6).unlink()
    strike = f"path=sample_0000002 calls={call} mode=errno:{code} times=0"
    struck = feedrate_struck(shim, strike, "verify", data)
    assert struck.calls and struck.done.status == 4, struck.done
    assert "1 file of" in struck.done.one_line() and "sample_0000002" in struck.done.one_line()
    assert "sample_0000006" in struck.done.out


def test_a_dataset_has_no_place_in_a_result(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("-w", "unet3d-tiny", "--loader", "direct", "--mismatched-dataset", "--out", out)
    assert run(tmp_path, "run", data, *words).status == 0
    for place in (out, out / "new" / "data"):
        done = run(tmp_path, "generate", place, *GENERATE)
        assert done.status == 2 and "lies in" in done.one_line()
    assert not (out / "new").exists()


def test_every_flipped_bit_that_changes_the_meaning_is_found(data: Path) -> None:
    text = (data / MANIFEST).read_bytes()
    meaning = json.loads(text)
    for at in range(0, len(text), 3):
        flipped = bytearray(text)
        flipped[at] ^= 1 << at % 7
        (data / MANIFEST).write_bytes(flipped)
        try:
            same = json.loads(flipped) == meaning
        except ValueError:
            same = False
        if not same:
            with pytest.raises(DatasetError):
                open_dataset(data)


@pytest.mark.parametrize(
    "change",
    [
        {"plan": None}, {"suffix": "/../../etc/hostname"}, {"samples_per_file": 1e-320},
        {"samples_per_file": 10**30}, {"files": 10**18}, {"plan": {"seed": float("inf")}},
        {"plan": {"seed": -1}}, {"plan": {"subfolders": -1}}, {"plan": {"seeds": 7}},
        {"plan": {"folder": "../.."}}, {"plan": {"depth": 99}}, {"plan": {"recipe": {"name": 1}}},
        {"plan": {"files": 7}}, {"measured": {"bytes": float("inf")}}, {"measured": {"files": 1}},
        {"table": "samples-00000000.npy/../x"}, {"format": "\x1b[31m"},
    ],
    ids=str,
)  # fmt: skip
def test_hostile_values_are_one_line(data: Path, tmp_path: Path, change: dict[str, object]) -> None:
    """With a checksum that is right: whoever writes such a manifest can write that, too."""
    head = json.loads((data / MANIFEST).read_bytes())
    plan = change.get("plan")
    head |= {"plan": {**head["plan"], **plan}} if isinstance(plan, dict) else change
    (data / MANIFEST).write_text(json.dumps({**head, "checksum": checksum_of(head)}))
    with pytest.raises(DatasetError):
        open_dataset(data)
    assert run(tmp_path, "verify", data).one_line()


@pytest.mark.parametrize(
    "header", [b"{'shape': (999999999999,)", b"{'shape': (", b"__import__('os')", b"{'shape': (8,), 'x': 1}"]
)
def test_a_hostile_table_is_one_line_and_allocates_nothing(data: Path, tmp_path: Path, header: bytes) -> None:
    import zlib

    head = json.loads((data / MANIFEST).read_bytes())
    table = bytearray((data / head["table"]).read_bytes())
    table[10 : 10 + len(header)] = header
    crc = zlib.crc32(table)
    (data / f"samples-{crc:08x}.npy").write_bytes(table)
    head |= {"table": f"samples-{crc:08x}.npy", "table_crc32": crc}
    (data / MANIFEST).write_text(json.dumps({**head, "checksum": checksum_of(head)}))
    done = forked(["verify", str(data)], tmp_path, memory=2**29)
    assert "wrong layout" in done.one_line()


def test_report_shows_the_file_that_it_is_given(tmp_path: Path) -> None:
    def result(reason: str) -> None:
        tables = {name: {} for name in ("workload", "dataset", "storage", "environment")}
        made = new_result("run", command=("feedrate",), loader="direct", **tables)
        write_result(tmp_path, replace(made, reason=reason))

    result("the-old-one")
    (tmp_path / RESULT).rename(tmp_path / "old.json")
    result("the-new-one")
    assert "the-old-one" in run(tmp_path, "report", tmp_path / "old.json").out
    assert "the-new-one" in run(tmp_path, "report", tmp_path / RESULT).out


def refused(place: object) -> bool:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(place))


def test_a_call_that_nobody_expects_to_fail_is_one_line(data: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("emulator.dataset.shared.open_dataset", refused)
    done = run(tmp_path, "verify", data)
    assert done.status == 4 and f"({data}): Cannot allocate memory" in done.one_line()


def test_an_error_while_giving_up_adds_no_line(data: Path, tmp_path: Path, monkeypatch) -> None:
    """All calls fail from the middle of a generate on, also those that look what there is to be removed."""

    def fails_from_now_on(store: FolderStore) -> int:
        monkeypatch.setattr(Path, "is_dir", refused)
        raise StorageError("cannot read the free space")

    monkeypatch.setattr(FolderStore, "free", fails_from_now_on)
    done = run(tmp_path, "generate", tmp_path / "new", *GENERATE)
    assert done.status == 4 and "cannot read the free space" in done.one_line()
