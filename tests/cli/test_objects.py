"""A dataset of objects as a user makes, checks and reads it: a small S3 endpoint that can fail."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command import ANSWERED, Done, feedrate
from s3_server import KEY, SECRET, Endpoint, Fault, s3_server

from emulator.config.storage import parse_place
from emulator.dataset.journal import Journal, journalled
from emulator.record.out import read_result
from emulator.storage import open_store

PLACE = "s3://bucket/data/tiny"
GENERATE = ("generate", PLACE, "--recipe", "tiny", "--files", 24, "--payload", "ratio=8")
RUN = ("--workload", "unet3d-tiny", "--loader", "direct", "--set", "accelerator.step_seconds=0.01")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with s3_server() as running:
        yield running


def ask(endpoint: Endpoint, *words: object, **environment: str) -> Done:
    done = feedrate(*words, **{**endpoint.environment(), **environment})
    assert SECRET not in done.out + done.err and KEY not in done.out + done.err
    return done


@pytest.fixture(scope="module")
def grown() -> dict[str, bytes]:
    """The objects that generate makes."""
    with s3_server() as running:
        done = ask(running, *GENERATE)
        assert done.status == 0, done.err
        return running.objects


@pytest.fixture
def made(endpoint: Endpoint, grown: dict[str, bytes]) -> Endpoint:
    endpoint.objects |= grown
    return endpoint


def test_objects_are_the_files_of_a_folder_byte_for_byte(made: Endpoint, tmp_path: Path) -> None:
    done = feedrate("generate", tmp_path / "data", *GENERATE[2:])
    assert done.status == 0, done.err
    names = (path for path in (tmp_path / "data").rglob("*") if path.is_file())
    folder = {str(path.relative_to(tmp_path / "data")): path.read_bytes() for path in names}
    folder.pop(".feedrate/lock", None)
    assert {name.removeprefix("data/tiny/"): data for name, data in made.objects.items()} == folder
    made.faults += [Fault("503", 2, key="sample_"), Fault("cut", 1, key="sample_")]
    done = ask(made, "verify", PLACE)
    assert done.status == 0 and "3 requests had to be repeated (busy 2, cut 1)" in done.out
    done = ask(made, "verify", PLACE)
    assert (done.status, done.out) == (0, f"{PLACE}: 24 of 24 files checked, 0 faults\n")
    made.asked.clear()
    assert ask(made, "verify", PLACE).status == 0
    assert sum("sample_" in key for _, key, _ in made.asked) == 24, "one request an object that is small"


def test_verify_finds_what_is_wrong_and_makes_it_again(made: Endpoint) -> None:
    whole = dict(made.objects)
    names = sorted(name for name in made.objects if "sample_" in name)
    data = bytearray(made.objects[names[3]])
    data[len(data) // 2] ^= 1
    made.objects[names[3]] = bytes(data)
    made.objects[names[5]] = made.objects[names[5]][:-1]
    del made.objects[names[7]]
    made.objects["data/tiny/more"] = b""
    done = ask(made, "verify", PLACE)
    assert done.status == 3 and "4 files of s3://bucket/data/tiny are wrong" in done.one_line()
    for number, said in ((3, "have changed"), (5, "where"), (7, "missing")):
        assert f"sample_{number:07d}.npz" in done.out and said in done.out
    assert "more: extra" in done.out
    del made.objects["data/tiny/more"]
    assert ask(made, "verify", PLACE, "--repair").status == 0
    assert made.objects == whole
    done = ask(made, *GENERATE, "--seed", 2, "--force")
    tables = [name for name in (*made.objects, *whole) if "samples-" in name]  # they bear their checksums
    assert done.status == 0 and len(tables) == 2
    assert made.objects.keys() ^ whole.keys() == set(tables)


def test_an_interrupted_generate_resumes(endpoint: Endpoint, grown: dict[str, bytes]) -> None:
    endpoint.faults.append(Fault("403", 1, "PUT", key="sample_0000020"))
    done = ask(endpoint, *GENERATE, "--threads", 1)
    assert done.status == 4 and "sample_0000020" in done.one_line()
    assert "data/tiny/.feedrate/plan.json" in endpoint.objects
    other = ask(endpoint, *GENERATE, "--seed", 2)
    assert other.status == 3 and "another dataset" in other.one_line()
    done = ask(endpoint, *GENERATE, "--json")
    events = [json.loads(line) for line in done.out.splitlines()]
    assert events[-1]["made_files"] == 4, done.err
    assert endpoint.objects == grown


@pytest.mark.mpi
def test_ranks_read_objects_through_an_endpoint_that_fails_now_and_then(
    made: Endpoint, tmp_path: Path
) -> None:
    """Every fault is repeated, counted and flagged."""
    kinds = ("503", "hang", "cut", "short", "reset")
    made.faults += [Fault(kind, 2, key="sample_") for kind in kinds]  # type: ignore[arg-type]
    place = f"{PLACE}?timeout=2s&retries=12"
    out = tmp_path / "out"
    done = ask(made, "run", place, *RUN, "-n", 2, "--epochs", 1, "--out", out)
    assert done.status == 0, done.err
    result = read_result(out)
    (point,) = result.points
    late = point.read_retries["timeout"]
    assert dict(point.read_retries) == {"busy": 2, "connection": 2, "cut": 4, "timeout": late} and late >= 2
    assert "retries" in {flag.name for flag in point.flags} and "had to be repeated" in done.out
    assert point.bytes == sum(len(data) for name, data in made.objects.items() if "sample_" in name)
    assert result.environment["dataset_mount"]["source"] == made.url
    assert result.environment["dataset_mount"]["type"] == "s3"
    assert "no-o-direct" not in {flag.name for flag in point.flags}
    # By the command, before it forks ranks, and by the first rank of the host for all.
    asked = [key.removeprefix("data/tiny/") for method, key, _ in made.asked if method == "GET"]
    assert [asked.count("manifest.json"), sum(key.startswith("samples-") for key in asked)] == [2, 2]
    kept = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert SECRET.encode() not in kept and KEY.encode() not in kept


@pytest.mark.long
@pytest.mark.mpi
def test_a_sweep_over_objects_and_pytorchs_loader(made: Endpoint, tmp_path: Path) -> None:
    done = ask(made, "sweep", PLACE, *RUN, "--counts", "1,2", "--steps", 4, "--out", tmp_path / "out")
    # Whether a knee can be told from two runs of four steps is not asked here.
    assert done.status in ANSWERED, done.err
    assert [point.ranks for point in read_result(tmp_path / "out").points] == [1, 2]
    words = ("run", PLACE, *RUN, "--epochs", 1, "--out", tmp_path / "whole")
    assert ask(made, *words, "--loader", "torch").status == 0


@pytest.mark.mpi
def test_ranks_share_the_making(made: Endpoint) -> None:
    whole = dict(made.objects)
    made.objects.clear()
    assert feedrate(*GENERATE, mpirun=2, **made.environment()).status == 0
    assert made.objects == whole


@pytest.mark.long
@pytest.mark.mpi
def test_doctor_says_whether_the_objects_answer(endpoint: Endpoint) -> None:
    done = ask(endpoint, "doctor", PLACE)
    assert f"{PLACE} answers, no objects" in done.out


def test_what_cannot_work_is_one_clear_line(endpoint: Endpoint, tmp_path: Path) -> None:
    run = ("run", PLACE, *RUN, "--out", tmp_path / "out")
    cases = (
        (run, {}, 3, "has no manifest.json"),
        (run, {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, 2, "AWS_ACCESS_KEY_ID"),
        (("verify", f"{PLACE}?retries=0"), {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, 4, "no connection"),
        (("verify", "gs://bucket/x"), {}, 2, "s3://BUCKET/PREFIX"),
    )
    for words, environment, status, said in cases:
        done = ask(endpoint, *words, **environment)
        assert done.status == status and said in done.one_line(), (words, done.err)
    assert not (tmp_path / "out").exists()


def test_a_journal_is_in_objects_from_time_to_time(endpoint: Endpoint) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in endpoint.environment().items():
            patch.setenv(name, value)
        store = open_store(parse_place(PLACE))
        with Journal(store, 1) as journal:
            threads = [threading.Thread(target=journal.add, args=(index, 10, 0)) for index in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            time.sleep(1.01)  # the age at which records become an object
            journal.add(20, 10, 0)
            assert sum(map(len, journalled(store))) == 21
            journal.add(21, 10, 0)
        assert np.concatenate(list(journalled(store)))["index"].tolist() == list(range(22))
