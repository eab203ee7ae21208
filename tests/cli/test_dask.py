"""`feedrate generate --dask ADDRESS` on a scheduler and workers that end when they should not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from command import feedrate, until
from s3_server import BUCKET, s3_server

from emulator.dataset.journal import journalled
from emulator.storage.folder import FolderStore

pytestmark = pytest.mark.long

FILES = 400


@contextmanager
def process(*words: object, **how: object) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen([str(word) for word in words], text=True, **how)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """A scheduler and two workers without nannies, which would start them again."""
    pytest.importorskip("distributed")
    dask, file = (sys.executable, "-m", "dask"), tmp_path / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    with ExitStack() as stack:
        at = ("--host", "127.0.0.1", "--no-dashboard")
        scheduler = process(*dask, "scheduler", *at, "--port", 0, "--scheduler-file", file, **quiet)
        found = [stack.enter_context(scheduler)]
        assert until(file.exists)
        worker = (*dask, "worker", *at, "--scheduler-file", file, "--nthreads", 1, "--no-nanny")
        found += [stack.enter_context(process(*worker, **quiet)) for _ in range(2)]
        from distributed import Client

        with Client(scheduler_file=str(file)) as client:
            client.wait_for_workers(2, timeout=60)
        yield found


@contextmanager
def generating(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`feedrate generate` on the cluster, once it has made some files."""
    address = json.loads((tmp_path / "scheduler.json").read_text())["address"]
    words = ("generate", tmp_path / "data", "--recipe", "tiny", "--files", FILES, "--dask", address, "--json")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with process(sys.executable, "-m", "emulator", *words, **pipes) as started:
        store = FolderStore(tmp_path / "data")
        assert until(lambda: started.poll() is not None or sum(map(len, journalled(store))) >= 20)
        assert started.poll() is None, started.communicate()
        yield started


def test_a_scheduler_without_workers_is_one_line_after_a_while(dask, tmp_path):
    for worker in dask[1:]:
        worker.kill()
        worker.wait()
    address = json.loads((tmp_path / "scheduler.json").read_text())["address"]
    done = feedrate("generate", tmp_path / "data", "--recipe", "tiny", "--files", 4, "--dask", address)
    assert done.status == 5 and "has no worker after 30 s: start some" in done.err
    assert "waiting for a worker" in done.out


def test_an_error_of_a_worker_is_not_taken_for_this_process(dask, tmp_path):
    address = json.loads((tmp_path / "scheduler.json").read_text())["address"]
    with s3_server("127.0.0.1") as endpoint:  # the workers' environment has no keys
        words = ("generate", f"s3://{BUCKET}/data", "--recipe", "tiny", "--files", 4, "--dask", address)
        done = feedrate(*words, **endpoint.environment())
    assert done.status == 4 and "error: a Dask worker: " in done.err


def test_a_lost_worker_costs_what_it_had_in_hand(dask, tmp_path):
    with generating(tmp_path) as command:
        dask[1].kill()
        said, errors = command.communicate(timeout=120)
    assert command.returncode == 0, errors
    answer = json.loads(said)
    assert answer["files"] == FILES and answer["made_files"] == FILES
    assert feedrate("verify", tmp_path / "data").status == 0


def test_a_lost_scheduler_is_one_line_and_the_same_command_goes_on(dask, tmp_path):
    with generating(tmp_path) as command:
        dask[0].kill()
        _, errors = command.communicate(timeout=120)
    assert command.returncode == 5
    said = [line for line in errors.splitlines() if "error" in line.lower()]
    assert len(said) == 1 and "is lost: what was made stays" in said[0] and "Traceback" not in errors
    again = feedrate("generate", tmp_path / "data", "--recipe", "tiny", "--files", FILES)
    assert again.status == 0 and f"made {FILES} files" not in again.out
