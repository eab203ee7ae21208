"""`feedrate record`: real jobs with the real DataLoader, described and replayed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from command import feedrate, is_alive, started, until

from emulator.calls import MAP, READ, read_calls
from emulator.config.recipe import load_recipe
from emulator.config.workload import load_workload
from emulator.launch.scratch import remove_dead
from emulator.plugins.recorder import session, strace
from emulator.plugins.recorder.steps import SEEN
from emulator.plugins.recorder.watch import Watch
from emulator.record.rows import read_rows

JOBS = Path(__file__).with_name("jobs.py")
WHY_NOT = strace.usable()
TRACED = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def make_files(folder: Path, sizes: list[int]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(sizes):
        (folder / f"patient-{number:03d}.dat").write_bytes(os.urandom(size))
    return folder


def record(out: Path, *words: object, options: tuple[str, ...] = (), **environment: str):
    """Record `jobs.py WORDS`."""
    job = ("--", sys.executable, JOBS, *words)
    return feedrate("record", "--out", out, "--no-check", *options, *job, **environment)


@TRACED
def test_a_job_of_whole_files_runs_unchanged_and_is_described(tmp_path):
    sizes = [20_000 + 1_000 * number for number in range(96)]
    data = make_files(tmp_path / "data", sizes)
    out = tmp_path / "job"
    done = record(out, "files", data, "step=0.02", "epochs=2", "status=7")
    assert done.status == 7 and done.out == "steps 48\n", done.err
    seen = json.loads((out / "record.json").read_text())
    assert seen["status"] == 7
    (loader,) = seen["loaders"]
    assert loader["settings"]["workers"] == 2 and loader["settings"]["dataset_length"] == 96
    reads = loader["reads"]
    assert (reads["files"], reads["files_bytes"]) == (96, sum(sizes))
    assert reads["bytes"] == 2 * sum(sizes)
    workload, recipe = load_workload(str(out / "workload.toml")), load_recipe(str(out / "recipe.toml"))
    assert workload.loader.batch_size == 4 and workload.loader.prefetch == 4
    assert workload.sample.samples_per_file == 1
    assert "--no-check" in workload.job.doubt, "what no replay has confirmed is flagged"
    calls = read_calls(out / "calls.parquet")
    assert calls.batches >= 40 and set(calls.bytes_of()) <= set(range(4 * 20_000, 4 * 115_000))
    # On a busy machine the loader falls behind, and then the step time is a bound.
    assert workload.accelerator.provenance in ("recorded", "bound")
    assert workload.accelerator.step_seconds >= 0.02
    assert recipe.files == 96 and sorted(recipe.size.listed) == sizes
    steps = read_rows(out / "profile.parquet", SEEN)
    assert len(steps) == 48 and steps["samples"].sum() == 192
    # Nothing of the user's but sizes, counts and times.
    for path in out.iterdir():
        assert b"patient" not in path.read_bytes() and os.fsencode(tmp_path.name) not in path.read_bytes()


@pytest.mark.long
@TRACED
def test_a_sample_of_two_files_is_one_sample_of_the_job(tmp_path):
    data = make_files(tmp_path / "data", [20_000] * 96)
    done = record(tmp_path / "job", "pairs", data, "step=0.005", "epochs=3")
    assert done.status == 0, done.err
    found = load_workload(str(tmp_path / "job" / "workload.toml"))
    assert (found.loader.batch_size, found.job.samples, found.job.replay) == (8, 0.5, None)


@TRACED
def test_of_a_gpu_that_starves_cuda_events_give_the_step_time(tmp_path):
    """A batch of four comes every 60 ms, the host launches for 3 ms, and the GPU computes for 30 ms."""
    data = make_files(tmp_path / "data", [2_000] * 160)
    job = ("files", data, "gpu=true", "step=0.03", "late=0.015", "num_workers=1")
    done = record(tmp_path / "job", *job, options=("--traced-steps", "5"))
    assert done.status == 0, done.err
    found = load_workload(str(tmp_path / "job" / "workload.toml")).accelerator
    assert (found.name, found.provenance, found.in_flight) == ("simulated GPU", "recorded", 2), done.err
    assert found.step_seconds == pytest.approx(0.03, rel=0.1)


@TRACED
@pytest.mark.parametrize(
    ("kind", "count", "each", "read", "loader"),
    [
        pytest.param("files", 1, 30_000, 30_000, "direct", marks=pytest.mark.long),
        ("piped", 1, 30_000, 30_000, "torch"),
        pytest.param("parts", 1, 400_000, 65536, "torch", marks=pytest.mark.long),
        pytest.param("slices", 64, 65536, 65536, "direct", marks=pytest.mark.long),
        ("mapped", 64, 65536, 65536, "direct"),
        pytest.param("crops", 400, 10486, 3 * 16384, "torch", marks=pytest.mark.long),
        pytest.param("shards", 20, 20_000, 20_000, "direct", marks=pytest.mark.long),
    ],
)
def test_what_a_job_reads_is_replayed(kind, count, each, read, loader, tmp_path):
    sizes = [30_000 if kind in ("files", "piped") else 400_000] * 96 if count in (1, 20) else [64 * 65536]
    data, more = make_files(tmp_path / "data", sizes), ("each=20000",) if kind == "shards" else ()
    # A worker in vfork waits for its child, which strace may have stopped when it lets go: the job hung.
    options = ("--traced-steps", "20") if kind == "piped" else ()
    job = (kind, data, "step=0.01", "batch_size=2", "epochs=2", *more)
    done = record(tmp_path / "job", *job, options=options)
    assert done.status == 0, done.err
    workload, recipe = (tmp_path / "job" / name for name in ("workload.toml", "recipe.toml"))
    found = load_workload(str(workload))
    assert (found.sample.samples_per_file, found.loader.batch_size) == (count, 2), done.err
    assert found.sample.bytes_mean == pytest.approx(each, rel=0.01)
    assert found.sample.bytes_read == pytest.approx(read, rel=0.02), done.err
    ops = read_calls(tmp_path / "job" / "calls.parquet").rows["op"]
    assert (MAP if kind == "mapped" else READ) in ops
    assert feedrate("generate", tmp_path / "replay", "--recipe", recipe).status == 0
    out = tmp_path / "out"
    words = ("--loader", loader, "--steps", "10", "--out", out, "--cache", "warm")
    done = feedrate("run", tmp_path / "replay", "--workload", workload, *words)
    assert done.status == 0, done.err
    (point,) = json.loads((out / "run.json").read_text())["points"]
    assert point["bytes"] == pytest.approx(10 * 2 * read, rel=0.05)


@TRACED
def test_a_users_folder_settles_how_many_files_there_are(tmp_path):
    data = make_files(tmp_path / "data", [30_000] * 96)
    done = record(tmp_path / "job", "files", data, options=("--data", str(data), "--traced-steps", "5"))
    assert done.status == 0, done.err
    # The job itself makes a file beside them.
    assert load_recipe(str(tmp_path / "job" / "recipe.toml")).files == len(list(data.iterdir())) == 97
    done = record(tmp_path / "other", "files", data, options=("--data", str(tmp_path / "none")))
    assert done.status == 2 and "there is no folder" in done.one_line()


@TRACED
def test_what_was_recorded_is_said_when_so_many_steps_are_and_the_job_runs_on(tmp_path):
    data = make_files(tmp_path / "data", [3_000] * 800)
    words = ("--no-check", "--steps", 40, "--traced-steps", 15, "--", sys.executable, JOBS, "files", data)
    running = recorder(tmp_path / "job", *words, "step=0.05")
    try:
        assert until((tmp_path / "job" / "workload.toml").exists)
        assert running.poll() is None, "the job has 200 steps"
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=60)
    finally:
        running.kill()


@TRACED
def test_each_rank_with_a_recorder_of_its_own_is_refused(tmp_path):
    done = feedrate("record", "--out", tmp_path / "job", "--", "true", RANK="0", WORLD_SIZE="2")
    assert done.status == 2 and "record the launcher" in done.one_line()


@pytest.mark.long
@TRACED
def test_two_loaders_and_a_user_sitecustomize(tmp_path):
    data = make_files(tmp_path / "data", [50_000] * 64)
    make_files(data / "valid", [10_000] * 6)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text(
        f"import pathlib\nwith pathlib.Path({str(tmp_path / 'called')!r}).open('a') as f: f.write('x')\n"
    )
    out = tmp_path / "job"
    done = record(
        out, "two", data, "num_workers=0", options=("--warmup", "1"),
        PYTHONPATH=os.pathsep.join([str(tmp_path / "own"), os.environ.get("PYTHONPATH", "")]),
    )  # fmt: skip
    assert done.status == 0, done.err
    assert (tmp_path / "called").exists()
    seen = json.loads((out / "record.json").read_text())
    assert sorted(loader["reads"]["bytes"] for loader in seen["loaders"]) == [60_000, 64 * 50_000]
    assert load_workload(str(out / "workload.toml")).loader.batch_size == 4


@pytest.mark.long
@TRACED
def test_a_job_that_kills_itself_and_one_without_a_loader(tmp_path):
    data = make_files(tmp_path / "data", [50_000] * 24)
    done = record(tmp_path / "killed", "files", data, "status=-9")
    assert done.status == -signal.SIGKILL, done.err
    assert (tmp_path / "killed" / "record.json").exists()
    done = record(tmp_path / "none", "none", data)
    assert done.status == 0
    lines = [line for line in done.err.splitlines() if "no DataLoader" in line]
    assert len(lines) == 1
    assert not (tmp_path / "none" / "workload.toml").exists()


@TRACED
def test_a_python_that_ignores_its_environment_is_not_taken_for_a_job_without_a_loader(tmp_path):
    data = make_files(tmp_path / "data", [50_000] * 24)
    done = feedrate("record", "--out", tmp_path / "out", "--", sys.executable, "-I", JOBS, "none", data)
    assert done.status == 0 and "used" not in done.err, done.err
    assert "no Python process of the job could be watched: start Python without -I" in done.err


@TRACED
def test_a_recording_is_checked_by_a_replay_of_the_same_files(tmp_path):
    # Large enough that pages of its libraries, which a worker reads from storage, are not a tenth of them.
    data, out = make_files(tmp_path / "data", [200_000] * 96), tmp_path / "job"
    job = ("--", sys.executable, JOBS, "files", data, "step=0.02", "epochs=2", "batch_size=2")
    before = sorted(data.iterdir())
    done = feedrate("record", "--out", out, "--traced-steps", "20", *job)
    assert done.status == 0 and done.out == "steps 96\n", done.err
    job = load_workload(str(out / "workload.toml")).job.replay
    assert job is not None, done.err
    # A busy machine may make the two differ: then the recording is not trusted, and says so.
    assert ("not to be trusted" in done.err) == bool(job.distrusted)
    assert f"job {job.samples_per_second:.1f} samples/s" in done.err
    assert 0 < job.samples_per_second <= 101 and 0 < job.replay_samples_per_second <= 120
    made = {path for path in data.iterdir() if path.suffix == ".bin"}  # the job's own
    assert sorted(set(data.iterdir()) - made) == before
    assert all(b"patient" not in path.read_bytes() for path in out.iterdir())


@TRACED
def test_what_is_in_the_way_is_not_touched(tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "mine.txt").write_text("mine")
    done = feedrate("record", "--out", tmp_path / "job", "--force", "--", "true")
    assert done.status == 2 and "mine.txt" in done.one_line()
    done = feedrate("record", "--out", tmp_path / "other", "--", "no-such-program")
    assert done.status == 5 and "no-such-program" in done.one_line()


@pytest.mark.long
@TRACED
def test_ranks_of_torchrun_are_one_recording(tmp_path):
    data = make_files(tmp_path / "data", [30_000] * 64)
    torchrun = Path(sys.executable).parent / "torchrun"
    launched = (torchrun, "--standalone", "--nproc-per-node", "2", JOBS, "files", data, "step=0.01")
    done = feedrate("record", "--out", tmp_path / "torchrun", "--", *launched)
    assert done.status == 0, done.err
    seen = json.loads((tmp_path / "torchrun" / "record.json").read_text())
    assert [loader["ranks"] for loader in seen["loaders"]] == [2]
    assert 60 <= load_recipe(str(tmp_path / "torchrun" / "recipe.toml")).files <= 64
    assert load_workload(str(tmp_path / "torchrun" / "workload.toml")).training.sync == "step"


@pytest.mark.parametrize(
    ("context", "persistent"),
    [("fork", "false"), ("fork", "true"), ("forkserver", "false"), ("spawn", "false")],
)
@pytest.mark.long
@TRACED
def test_reads_are_traced_at_first_and_steps_are_timed_afterwards(context, persistent, tmp_path):
    """The tracer lets go of the job while it runs: of workers, however they began, and of the job itself."""
    data, out = make_files(tmp_path / "data", [30_000] * 128), tmp_path / "job"
    done = record(
        out, "files", data, "step=0.02", "epochs=2", f'multiprocessing_context="{context}"',
        f"persistent_workers={persistent}", "traced=true",
        options=("--traced-steps", "20", "--warmup", "4"),
    )  # fmt: skip
    assert done.status == 0 and done.out == "steps 64\ntracer 0\n", done.err
    seen = json.loads((out / "record.json").read_text())
    (loader,) = seen["loaders"]
    assert loader["steps"] == 64 and 24 <= loader["read_steps"] < 40
    assert 4 * loader["read_steps"] - 32 <= loader["reads"]["requests"] <= 4 * loader["read_steps"] + 32
    steps = read_rows(out / "profile.parquet", SEEN)
    assert 0 <= loader["read_steps"] - steps["traced"].sum() <= 5, "batches are read ahead"
    assert not seen["step"]["traced"] and seen["step"]["all_steps"] == 64 - steps["traced"].sum()
    assert load_recipe(str(out / "recipe.toml")).files == 128


@TRACED
@pytest.mark.parametrize("workers", [0, 2])
def test_only_the_processes_that_read_samples_are_traced(workers, tmp_path):
    """strace would stop the job's own process whenever it takes a batch from a worker."""
    data, out = make_files(tmp_path / "data", [30_000] * 64), tmp_path / "job"
    done = record(out, "files", data, f"num_workers={workers}", "traced=true")
    assert done.status == 0 and (done.out == "steps 16\ntracer 0\n") == bool(workers), done.out + done.err
    (loader,) = json.loads((out / "record.json").read_text())["loaders"]
    assert loader["reads"]["files"] == 64 and loader["reads"]["bytes"] == 64 * 30_000


@pytest.mark.long
@TRACED
def test_reads_count_until_the_tracer_is_killed(tmp_path):
    data = make_files(tmp_path / "data", [30_000] * 256)
    words = ("--traced-steps", 500, "--no-check", "--", sys.executable, JOBS, "files", data, "step=0.03")
    running = recorder(tmp_path / "job", *words)
    try:
        assert until(lambda: [one for one in users(str(data)) if one.name() == "pt_data_worker"])
        time.sleep(1)
        family = psutil.Process(running.pid).children(recursive=True)
        next(one for one in family if one.name() == "strace").kill()
        _, said = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 0, said
    (loader,) = json.loads((tmp_path / "job" / "record.json").read_text())["loaders"]
    assert loader["steps"] == 64 and loader["read_steps"] < 60
    assert 4 * loader["read_steps"] - 32 <= loader["reads"]["requests"] <= 4 * loader["read_steps"] + 32


def recorder(out: Path, *words: object) -> subprocess.Popen:
    """`feedrate record` with further options, `--` and a job, under way."""
    return started("record", "--out", out, *words, stdout=None)


def users(name: str) -> list[psutil.Process]:
    """Processes with `name` in their command line."""
    return [one for one in psutil.process_iter(["cmdline"]) if name in " ".join(one.info["cmdline"] or ())]


HEEDLESS = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: pathlib.Path(sys.argv[1], "interrupted").touch())
pathlib.Path(sys.argv[1], "ready").touch()
while True:
    time.sleep(0.1)
"""


@TRACED
def test_the_first_interrupt_is_the_jobs_and_the_second_ends(tmp_path):
    running = recorder(tmp_path / "job", "--", sys.executable, "-c", HEEDLESS, tmp_path)
    try:
        assert until((tmp_path / "ready").exists)
        running.send_signal(signal.SIGINT)
        assert until((tmp_path / "interrupted").exists)
        time.sleep(0.6)  # closer ones are one keystroke
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == -signal.SIGKILL and "Traceback" not in said
    assert "the job ended with signal 9: it was recorded until then" in said, said
    assert (tmp_path / "job" / "record.json").exists()


def test_a_signal_that_comes_before_the_job_is_known_reaches_it(monkeypatch):
    class Interrupted(subprocess.Popen):
        def __init__(self, *words, **options):
            super().__init__(*words, **options)
            os.kill(os.getpid(), signal.SIGTERM)  # its handler runs before anyone knows the job

    monkeypatch.setattr(session.subprocess, "Popen", Interrupted)
    status = session.run_job(["sleep", "20"], Watch(), steps=None, warmup=1, traced_steps=10)
    assert status == -signal.SIGTERM


@pytest.mark.long
@TRACED
def test_a_killed_recorder_leaves_no_tracer_that_holds_the_jobs_workers(tmp_path):
    # One long epoch: PyTorch's workers that have just started when their job is killed never end.
    data = make_files(tmp_path / "data", [200] * 8000)
    words = ("--traced-steps", 2000, "--no-check", "--", sys.executable, JOBS, "files", data, "step=0.02")
    running = recorder(tmp_path / "job", *words)
    try:
        assert until(lambda: [one for one in users(str(data)) if one.name() == "pt_data_worker"])
        time.sleep(1)
        running.kill()
        running.communicate(timeout=60)
        # PyTorch's workers look every 5 s whether their job is alive.
        assert until(lambda: not users(str(data))), users(str(data))
    finally:
        for one in users(str(data)):
            one.kill()


@TRACED
@pytest.mark.parametrize("whom", ["supervisor", "worker", "both"])
def test_a_killed_recorder_leaves_nothing(whom, tmp_path):
    """Neither a tracer nor a folder in memory; a job that heeds SIGTERM ends, too."""
    (tmp_path / "job").mkdir()
    running = recorder(tmp_path / "job" / "out", "--", "sleep", "600")
    try:
        (worker,) = until(psutil.Process(running.pid).children)
        memory = Path("/dev/shm")
        (folder,) = until(lambda: list(memory.glob(f"feedrate-*-{worker.pid}-*")))
        (job,) = until(lambda: [one for one in worker.children(recursive=True) if one.name() == "sleep"])
        for process in {"supervisor": [running], "worker": [worker], "both": [running, worker]}[whom]:
            process.kill()
        running.communicate(timeout=60)
        if whom == "both":  # nobody is left who could remove it, until the next start of feedrate
            assert until(lambda: not is_alive(worker))
            remove_dead(wait=True)
        assert until(lambda: not folder.exists())
        assert until(lambda: not users(folder.name)), users(folder.name)
        assert until(lambda: not is_alive(job))
    finally:
        running.kill()
