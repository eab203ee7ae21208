"""A real Ceph with radosgw: datasets on s3:// and rados://, and rados bench. Needs root: make test-ceph."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import ANSWERED, Done, feedrate
from contracts.storage_contract import SIZES, StorageContract, content, folder
from hosts import lab

from emulator.config.storage import parse_place
from emulator.errors import StorageError
from emulator.record.out import read_result
from emulator.record.steps import read_steps
from emulator.storage import open_store
from emulator.storage.base import HEAD, Storage, Store, WriteOptions

__all__ = ["folder"]
pytestmark = pytest.mark.ceph
PORT = 17481
GENERATE = ("--recipe", "tiny", "--files", 48)
RUN = ("--workload", "unet3d-tiny", "--set", "accelerator.step_seconds=0.02")
AWS = {
    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{PORT}",
    "AWS_ACCESS_KEY_ID": "AKLAB",
    "AWS_SECRET_ACCESS_KEY": "SKLAB",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """Folder of a running cluster; a short path, as that of a socket has to be."""
    place = Path("/run/feedrate-ceph")
    if place.exists():
        lab("ceph.sh", "down", place)
        subprocess.run(["rm", "-rf", place], check=True)
    try:
        lab("ceph.sh", "up", place, PORT)
        os.environ |= AWS
        os.environ["CEPH_CONF"] = str(place / "ceph.conf")
        yield place
    finally:
        for name in (*AWS, "CEPH_CONF"):
            os.environ.pop(name, None)
        lab("ceph.sh", "down", place)
        subprocess.run(["rm", "-rf", place], check=True)


def good(*words: object) -> Done:
    done = feedrate(*words, timeout=170)
    assert done.status == 0, done.err
    assert "SKLAB" not in done.out + done.err
    return done


PLACES = ("s3://bucket/data", "rados://bench/data")


def need_binding(place: str) -> None:
    if place.startswith("rados://"):
        pytest.importorskip("rados", reason="Ceph's binding is not visible: tests/lab/ceph.sh bind")


@pytest.mark.parametrize("place", PLACES)
def test_generate_verify_run_and_sweep(cluster: Path, tmp_path: Path, place: str) -> None:
    need_binding(place)
    good("generate", place, *GENERATE)
    assert "nothing was made" in good("generate", place, *GENERATE).out
    assert "48 of 48 files checked, 0 faults" in good("verify", place).out
    for loader in ("direct", "torch"):
        out = tmp_path / loader
        good("run", place, *RUN, "--loader", loader, "-n", 2, "--epochs", 1, "--out", out)
        result = read_result(out)
        assert result.points[0].bytes == result.dataset["bytes"]
        assert result.environment["dataset_mount"]["type"] == place.partition(":")[0]
        assert not result.points[0].read_retries
        kept = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
        assert b"SKLAB" not in kept and b"AKLAB" not in kept
    swept = tmp_path / "sweep"
    done = feedrate(
        "sweep", place, *RUN, "--loader", "direct", "--counts", "1,2", "--steps", 4, "--out", swept,
        timeout=170,
    )  # fmt: skip
    assert done.status in ANSWERED, done.err
    assert [point.ranks for point in read_result(swept).points] == [1, 2]


def test_ask_ends_without_an_abort_of_librados(cluster: Path, tmp_path: Path) -> None:
    """Each of its processes shuts its connection down."""
    need_binding("rados://")
    words = ("-w", "unet3d-tiny", "--up-to", 2, "--within", "20s", "--out", tmp_path / "out")
    done = feedrate("ask", "rados://bench/asked", *words, timeout=170)
    assert done.status in ANSWERED, done.err
    assert "terminate called" not in done.out + done.err and "nan" not in done.out.lower(), done.err


@pytest.mark.parametrize("place", PLACES)
def test_damage_is_found_and_made_good(cluster: Path, place: str) -> None:
    need_binding(place)
    words = ("generate", place + "2", "--recipe", "kits19", "--files", 2)
    good(*words)
    store = open_store(parse_place(place + "2"))
    names = sorted(entry.name for entry in store.entries("sample_"))
    assert len(names) == 2
    whole = [store.get(name, 1 << 30) for name in names]
    assert whole[0] and whole[1] and min(map(len, whole)) > 20e6
    wrong = bytearray(whole[0])
    wrong[len(wrong) // 2] ^= 1
    store.put(names[0], bytes(wrong))
    store.put(names[1], whole[1][:-7])
    store.put("more", b"")
    done = feedrate("verify", place + "2")
    assert done.status == 3 and "3 files of" in done.one_line()
    assert "have changed" in done.out and "where" in done.out and "more: extra" in done.out
    store.delete(["more"])
    good("verify", place + "2", "--repair")
    assert [store.get(name, 1 << 30) for name in names] == whole
    good("generate", place + "2", *GENERATE, "--force")
    assert len(list(store.entries("sample_"))) == 48
    assert not list(store.entries(".feedrate/"))


def test_a_gateway_that_stops_for_a_while_is_waited_for_counted_and_flagged(
    cluster: Path, tmp_path: Path
) -> None:
    """Every byte is that of the manifest all the same. Four epochs, read as they begin, take 7 s."""
    good("generate", "s3://bucket/held", *GENERATE)
    out, gateway, over = tmp_path / "out", int((cluster / "client.rgw.a.pid").read_text()), threading.Event()

    def hold() -> None:
        while not ((out / "spool").is_dir() and len(read_steps(out))) and not over.wait(0.1):
            pass
        os.kill(gateway, signal.SIGSTOP)
        over.wait(2.0)
        os.kill(gateway, signal.SIGCONT)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        place = "s3://bucket/held?timeout=700ms&retries=8"
        slow = ("--set", "accelerator.step_seconds=0.3")
        good("run", place, *RUN, *slow, "--loader", "direct", "-n", 2, "--epochs", 4, "--out", out)
    finally:
        over.set()
        holder.join()
    (point,) = read_result(out).points
    assert point.read_retries.get("timeout", 0) > 0
    assert "retries" in {flag.name for flag in point.flags}


class TestRados(StorageContract):
    @pytest.fixture
    def store(self, cluster: Path) -> Store:
        need_binding("rados://")
        return open_store(parse_place("rados://bench/contract?timeout=20s"))

    @pytest.fixture
    def storage(self, store: Store, folder: Path) -> Storage:
        for name in SIZES:
            store.put(name, content(name))
        return store

    idle_files = 3  # connections to OSDs

    def test_what_cannot_be_read_is_the_storages_fault(self, storage: Storage) -> None:
        weak = open_store(parse_place("rados://bench/contract?user=client.weak&timeout=20s"))
        with pytest.raises(StorageError, match="inside.*denied"):
            weak.open("inside")
        with pytest.raises(StorageError, match="inside.*denied"):
            weak.open("inside", 100).read_into(0, memoryview(bytearray(3 * HEAD)))

    def test_a_sample_of_many_pieces_shrinks_and_grows(self, store: Store) -> None:
        for size in (9 << 20, (4 << 20) + 1, 4 << 20, 100, 12 << 20):
            data = os.urandom(size)
            with store.draft("big", WriteOptions()) as draft:
                draft.put(memoryview(data), 0)
                draft.end(size)
                draft.publish()
            assert (store.size("big"), store.get("big")) == (size, data)
            with store.open("big", size + 1) as blob, pytest.raises(Exception, match="the manifest says"):
                blob.read_into(0, memoryview(bytearray(size + 1)))
        store.delete(["big"])
        assert not list(store.entries("big"))
        assert store.size("big") is None

    def test_no_pool_no_cluster(self, cluster: Path, tmp_path: Path) -> None:
        need_binding("rados://")
        for place, said in (
            ("rados://none/x", "no pool none"),
            (f"rados://bench/x?conf={tmp_path}/none", "cannot be reached"),
        ):
            done = feedrate("verify", place)
            assert done.status == 4 and said in done.one_line(), done.err


def test_rados_bench_is_kept_whole_and_shown(cluster: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("rados", "--pool", "bench", "--ceph-conf", cluster / "ceph.conf")
    done = good("baseline", *words, "--quick", "--runtime", "1s", "--depths", "1,8", "--out", out)
    result = read_result(out)
    assert (result.kind, result.status, len(result.baseline)) == ("baseline", "complete", 6)
    for corner in result.baseline:
        (file,) = corner.files
        printed = json.loads((out / file).read_text())
        side = corner.read or corner.write
        assert side is not None
        assert side.bytes_per_second == pytest.approx(float(printed["bandwidth"]) * 2**20, rel=1e-4)
        assert side.latency_mean == pytest.approx(float(printed["average_latency"]))
        assert (out / file).with_suffix(".command").read_text().split()[0].endswith("rados")
    assert "rados bench reads up to" in done.out
    assert "4 MiB random read" in good("report", out).out
    rados = ["rados", "--conf", str(cluster / "ceph.conf"), "-p", "bench", "ls"]
    left = subprocess.run(rados, capture_output=True, text=True, check=True).stdout
    assert "benchmark_data" not in left


def test_two_clients_write_objects_of_their_own_and_add_up(cluster: Path, tmp_path: Path) -> None:
    words = ("rados", "--pool", "bench", "--ceph-conf", cluster / "ceph.conf", "--quick", "--runtime", "1s")
    out = tmp_path / "out"
    done = feedrate("baseline", *words, "--out", out, mpirun=2)
    assert done.status == 0, done.err
    for corner in read_result(out).baseline:
        assert corner.clients == len(corner.files) == 2
        printed = [json.loads((out / file).read_text()) for file in corner.files]
        side = corner.read or corner.write
        assert side is not None
        both = sum(float(client["bandwidth"]) for client in printed) * 2**20
        assert side.bytes_per_second == pytest.approx(both, rel=1e-4)


def test_no_pool_no_permission_no_cluster_are_one_clear_line(cluster: Path, tmp_path: Path) -> None:
    conf = cluster / "ceph.conf"
    elsewhere = tmp_path / "ceph.conf"
    elsewhere.write_text(conf.read_text().replace("13310", "13998").replace("16799", "16998"))
    for words, said in (
        (("--pool", "none", "--ceph-conf", conf), "no pool none"),
        (("--pool", "bench", "--ceph-conf", conf, "--ceph-user", "client.weak"), "allow rwx"),
        (("--pool", "bench", "--ceph-conf", conf, "--ceph-user", "client.nobody"), "--ceph-user"),
        (("--pool", "bench", "--ceph-conf", elsewhere), "monitors"),
    ):
        done = feedrate("baseline", "rados", *words, "--quick", "--out", tmp_path / said)
        assert done.status == 4 and said in done.one_line(), (words, done.err)


def test_an_osd_that_is_killed_is_one_error_after_the_storage_timeout(cluster: Path, tmp_path: Path) -> None:
    """The last test: its objects are gone with it. Without a limit of ours, librados waits for ever."""
    need_binding("rados://")
    place = "rados://bench/dead"
    good("generate", place, *GENERATE)
    os.kill(int((cluster / "osd.0.pid").read_text()), signal.SIGKILL)
    run = ("run", place, *RUN, "-n", 2, "--loader", "direct", "--out", tmp_path / "out")
    for words in (("verify", place), run):
        done = feedrate(*words, "--storage-timeout", "6s")
        assert done.status == 4 and place in done.one_line(), done.err
        assert done.seconds < 6 + 10, done
