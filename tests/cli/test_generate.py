"""`feedrate generate`, `verify` and `datasize` as a user runs them."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sys
from pathlib import Path

import pytest
from command import feedrate, finished

from emulator.dataset.manifest import open_dataset, read_manifest
from emulator.dataset.verify import check_file


def sums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file that belongs to the dataset."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".feedrate" not in path.parts and path.name != "manifest.json"
    }


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 samples in three sub-folders, made by one thread."""
    folder = tmp_path_factory.mktemp("small") / "data"
    done = feedrate("generate", folder, "--recipe", "tiny", "--files", 24, "--subfolders", 3, "--threads", 1)
    assert done.status == 0, done.err
    return folder


@pytest.fixture
def copied(small: Path, tmp_path: Path) -> Path:
    """A dataset that may be damaged."""
    return Path(shutil.copytree(small, tmp_path / "data"))


SAME = ("--recipe", "tiny", "--files", 24, "--subfolders", 3)


def test_it_says_what_it_made(small):
    manifest = read_manifest(small)
    assert len(manifest.names) == 24 and manifest.names[4] == "0001/sample_0000004.npz"
    assert manifest.total == sum(path.stat().st_size for path in small.rglob("*.npz"))
    assert manifest.measured["zstd_ratio"] < 1.001 and manifest.measured["unique_blocks"] == 1
    done = feedrate("generate", small, *SAME)
    assert "complete already" in done.out and "zstd-3 ratio 1.00, 100.0% of 4 KiB blocks unique" in done.out


@pytest.mark.parametrize("options", [("--threads", 7), ("--no-fsync", "--threads", 2)])
def test_same_bytes_from_any_number_of_threads(small, tmp_path, options):
    assert feedrate("generate", tmp_path / "data", *SAME, *options).status == 0
    assert sums(tmp_path / "data") == sums(small)


@pytest.mark.mpi
def test_same_bytes_from_mpi(small, tmp_path):
    if not (Path(sys.executable).parent / "mpirun").exists():
        pytest.skip("no mpirun beside this python")
    done = feedrate("generate", tmp_path / "data", *SAME, mpirun=3)
    assert done.status == 0, done.err
    assert "made 24 files" in done.out
    assert sums(tmp_path / "data") == sums(small)
    (tmp_path / "data" / "0001" / "sample_0000004.npz").unlink()
    done = feedrate("verify", tmp_path / "data", mpirun=2)
    assert done.status == 3 and "0001/sample_0000004.npz: missing" in done.out
    assert "1 file of" in done.one_line()


def test_same_ct_realistic_bytes_from_any_number_of_threads(tmp_path):
    options = ("--payload", "ct-realistic", "--recipe", "tiny", "--files", 12, "--format", "npy")
    for name, threads in (("a", 1), ("b", 5)):
        assert feedrate("generate", tmp_path / name, *options, "--threads", threads).status == 0
    assert sums(tmp_path / "a") == sums(tmp_path / "b")
    manifest = read_manifest(tmp_path / "a")
    assert [seed["name"] for seed in manifest.plan.seeds] == ["phantom_0", "phantom_1"]
    assert all(len(seed["sha256"]) == 64 for seed in manifest.plan.seeds)
    assert 1.3 < manifest.measured["zstd_ratio"] < 3


def test_a_dataset_is_extended(small, tmp_path):
    folder = tmp_path / "data"
    assert feedrate("generate", folder, "--recipe", "tiny", "--files", 10, "--subfolders", 3).status == 0
    done = feedrate("generate", folder, *SAME)
    assert "made 14 files" in done.out
    assert sums(folder) == sums(small)
    assert "fewer" not in done.err
    assert (
        "24 files of this dataset, 10 were asked for"
        in feedrate("generate", folder, "--recipe", "tiny", "--files", 10, "--subfolders", 3).one_line()
    )


def test_damage_is_repaired(copied, small):
    (copied / "0000" / "sample_0000000.npz").unlink()
    with (copied / "0001" / "sample_0000001.npz").open("r+b") as file:
        file.truncate(5000)
    done = feedrate("generate", copied, *SAME)
    assert "made 2 files" in done.out
    assert sums(copied) == sums(small)
    flip(copied / "0000" / "sample_0000003.npz", 100_000)
    assert "complete already" in feedrate("generate", copied, *SAME).out
    assert "1 file made again" in feedrate("verify", copied, "--repair").out
    assert sums(copied) == sums(small)
    (copied / "manifest.json").write_text("{")
    for words in (("verify", copied), ("generate", copied, *SAME)):
        assert "corrupt" in feedrate(*words).one_line()


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_json_is_for_machines(copied, tmp_path):
    (copied / "0002" / "sample_0000005.npz").unlink()
    answer = json.loads(feedrate("verify", copied, "--json").out)  # one line, whatever else is said
    assert (answer["checked"], answer["files"], len(answer["faults"])) == (24, 24, 1)
    assert {"file", "what"} == set(answer["faults"][0])
    tmp_path /= "new"
    done = feedrate("generate", tmp_path / "data", "--recipe", "tiny", "--files", 4, "--json")
    last = [json.loads(line) for line in done.out.splitlines()][-1]
    assert last["files"] == last["made_files"] == 4
    assert last["bytes"] == last["made_bytes"] == read_manifest(tmp_path / "data").total
    plan = json.loads(
        feedrate("generate", tmp_path / "none", "--recipe", "tiny", "--files", 4, "--dry-run", "--json").out
    )
    assert plan["total"] == last["bytes"]
    assert not (tmp_path / "none").exists()


def test_a_plan_of_a_million_files_needs_no_memory_for_each(tmp_path):
    code = (
        "import re, sys; from pathlib import Path; from emulator.cli.entry import entry\n"
        f"sys.argv = ['feedrate', 'generate', {str(tmp_path / 'd')!r}, '--recipe', 'kits19', '--dry-run',"
        " '--files', '1000000']\n"
        "try:\n    entry()\nfinally:\n"
        "    print(re.search(r'VmHWM:\\s*([0-9]+) kB', Path('/proc/self/status').read_text())[1])\n"
    )
    done = finished([sys.executable, "-c", code])
    assert "1000000 files, 147 TB" in done.out
    assert int(done.out.splitlines()[-1]) < 300_000, "KiB"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--recipe", "kits"), 2, "did you mean 'kits19'"),
        (("--recipe", "tiny", "--files", "4", "--size", "1GB"), 2, "--files and --size were both given"),
        (("--size", "2TBs"), 2, "'2TBs' is not a size"),
        (("--format", "zarr"), 2, "--set format=zarr: format must be one of"),
        (("--payload", "zero"), 2, "payload 'zero' is not known"),
        (("--seeds", "nowhere"), 3, "there is no folder nowhere with seeds"),
        (("--seeds", ".", "--payload", "incompressible"), 2, "--seeds is for the payload ct-realistic"),
        (("--recipe", "kits19", "--size", "90TB"), 4, "are needed"),
        (("--files", "1", "--seed", str(2**63)), 2, "seed and subfolders 0 to 2**63 - 1"),
        (("--recipe", "kits19", "--size", "900PB"), 2, "more than 100000000 files"),
        pytest.param(("--dask", "tcp://127.0.0.1:9"), 5, "no Dask scheduler answers", marks=pytest.mark.long),
    ],
)
def test_a_mistake_is_one_line(tmp_path, words, status, said):
    done = feedrate("generate", tmp_path / "data", "--recipe", "tiny", *words, cwd=tmp_path)
    assert said in done.one_line() and done.status == status


@pytest.mark.parametrize("form", ["npz", "npy"])
def test_a_flipped_bit_is_found_anywhere(tmp_path, form):
    """50 random places, in a file and in two of a sample; the campaign has every format."""
    folder = tmp_path / "data"
    words = ("--recipe", "tiny", "--files", 3, "--format", form, "--payload", "ratio=2", "--no-fsync")
    done = feedrate("generate", folder, *words)
    assert done.status == 0, done.err
    dataset = open_dataset(folder)
    room = bytearray(1 << 20)
    assert [check_file(dataset, index, room) for index in range(3)] == [None] * 3
    rng = random.Random(form)
    parts = sorted(folder.glob("sample_0000001*"))
    for _ in range(50):
        path = rng.choice(parts)
        bit = rng.randrange(path.stat().st_size * 8)
        flip(path, bit)
        fault = check_file(dataset, 1, room)
        assert fault is not None and "sample_0000001" in fault.name, f"bit {bit} of {path.name}"
        flip(path, bit)
    assert check_file(dataset, 1, room) is None


def test_datasize_follows_mlperfs_rule():
    words = ("datasize", "--workload", "unet3d-a100", "--accelerators", 64, "--hosts", 8)
    found = json.loads(feedrate(*words, "--host-memory", "256GiB", "--json").out)
    assert found["by_steps"] == 500 * 7 * 64 == found["files"]
    assert found["by_memory"] == -(-8 * 256 * 2**30 * 5 // 146_600_628)
    assert found["bytes"] == found["files"] * 146_600_628
    found = json.loads(feedrate(*words[:-1], 400, "--host-memory", "2TiB", "--json").out)
    assert found["files"] == found["by_memory"] > found["by_steps"]
    assert "5 x" in feedrate(*words, "--host-memory", "256GiB").out
    assert "no workload" in feedrate("datasize", "-w", "nix", "--accelerators", 1).one_line()
