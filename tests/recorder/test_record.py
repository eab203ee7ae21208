"""`feedrate record`: real jobs with the real DataLoader, described and replayed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import mode

import psutil
import pytest
from command import feedrate, is_alive, started, until

from emulator.config.recipe import load_recipe
from emulator.config.workload import load_workload
from emulator.plugins.recorder import recording, strace
from emulator.plugins.recorder.steps import SEEN
from emulator.record.rows import read_rows
from emulator.storage.posix import evict, resident_pages

JOBS = Path(__file__).with_name("jobs.py")
TRACED = pytest.mark.skipif(bool(strace.usable()), reason=strace.usable() or "strace works")
TRACERS = [pytest.param("strace", marks=TRACED), "python"]


def make_files(folder: Path, sizes: list[int]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(sizes):
        (folder / f"patient-{number:03d}.dat").write_bytes(os.urandom(size))
    return folder


def record(out: Path, *words: object, options: tuple[str, ...] = (), **environment: str):
    """Record `jobs.py WORDS`."""
    job = ("--", sys.executable, JOBS, *words)
    return feedrate("record", "--out", out, "--no-check", *options, *job, **environment)


@pytest.mark.parametrize("tracer", TRACERS)
def test_a_job_of_whole_files_runs_unchanged_and_is_described(tracer, tmp_path):
    sizes = [20_000 + 1_000 * number for number in range(96)]
    data = make_files(tmp_path / "data", sizes)
    out = tmp_path / "job"
    done = record(out, "files", data, "step=0.02", "epochs=2", "status=7", options=("--tracer", tracer))
    assert done.status == 7 and done.out == "steps 48\n", done.err
    seen = json.loads((out / "record.json").read_text())
    assert seen["how"] == tracer and seen["status"] == 7 and not seen["complete"]
    (loader,) = seen["loaders"]
    assert loader["settings"]["sampler"] == "RandomSampler" and loader["settings"]["workers"] == 2
    reads = loader["reads"]
    assert (reads["files"], reads["files_bytes"], reads["visits"]) == (96, sum(sizes), 192)
    assert reads["bytes"] == 2 * sum(sizes)
    workload, recipe = load_workload(str(out / "workload.toml")), load_recipe(str(out / "recipe.toml"))
    assert workload.loader.batch_size == 4 and workload.loader.prefetch == 4
    assert not workload.access.bytes_read and workload.sample.samples_per_file == 1
    # On a busy machine the loader falls behind, and then the step time is a bound.
    assert workload.accelerator.provenance in ("recorded", "bound")
    assert workload.accelerator.step_seconds >= 0.02
    assert recipe.files == 96 and recipe.size.quantiles[0] == 20_000 and recipe.size.quantiles[-1] == 115_000
    steps = read_rows(out / "profile.parquet", SEEN)
    assert len(steps) == 48 and steps["samples"].sum() == 192
    # Nothing of the user's but sizes, counts and times.
    for path in out.iterdir():
        assert b"patient" not in path.read_bytes() and os.fsencode(tmp_path.name) not in path.read_bytes()


@pytest.mark.long
@TRACED
def test_replays_look_for_the_bytes_that_a_sample_has_of_its_share_of_a_mapped_file(tmp_path):
    """How many there are depends on the read-ahead of this disk; make test-record has a device of its own.

    The file is large, because record looks for its pages in memory when others may have been read ahead.
    """
    (file,) = make_files(tmp_path / "data", [400 * 524288]).iterdir()
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        evict(opened.fileno())
        if resident_pages(opened.fileno(), 0, 2**20)[1]:
            pytest.skip("the file system keeps its files in memory")
    job = (sys.executable, JOBS, "mapped", tmp_path / "data", "step=0.01", "each=524288", "epochs=3")
    done = feedrate("record", "--out", tmp_path / "job", "--traced-steps", 40, "--", *job)
    assert done.status == 0, done.err
    seen = json.loads((tmp_path / "job" / "record.json").read_text())
    assert seen["of_map"] is not None, done.err
    assert 4096 <= seen["of_map"] <= 4 * 524288 and "of a mapped file" in done.err
    found = load_workload(str(tmp_path / "job" / "workload.toml"))
    assert found.access.mapped and found.job.replay is not None and found.job.unchecked == ""
    assert found.sample.bytes_mean == pytest.approx(seen["of_map"], rel=0.05)


@pytest.mark.long
@TRACED
def test_a_sample_of_two_files_is_one_sample_of_the_job(tmp_path):
    data = make_files(tmp_path / "data", [20_000] * 96)
    done = record(tmp_path / "job", "pairs", data, "step=0.005", "epochs=3")
    assert done.status == 0, done.err
    found = load_workload(str(tmp_path / "job" / "workload.toml"))
    assert (found.loader.batch_size, found.job.samples, found.job.replay) == (8, 0.5, None)


@pytest.mark.long
@TRACED
def test_a_host_that_runs_ahead_of_its_accelerator_gives_the_accelerators_step_time(tmp_path):
    data = make_files(tmp_path / "data", [2_000] * 200)
    done = record(tmp_path / "job", "files", data, "step=0.1", "every=5", options=("--traced-steps", "15"))
    assert done.status == 0, done.err
    found = load_workload(str(tmp_path / "job" / "workload.toml")).accelerator
    if found.provenance == "bound":
        pytest.skip("the machine is too busy: batches came too late for the accelerator")
    assert found.in_flight == 5, done.err
    assert found.step_seconds == pytest.approx(0.1, rel=0.05)


def test_of_a_gpu_that_starves_cuda_events_give_the_step_time(tmp_path):
    """A batch of four comes every 60 ms, the host launches for 3 ms, and the GPU computes for 30 ms."""
    data = make_files(tmp_path / "data", [2_000] * 160)
    job = ("files", data, "gpu=true", "step=0.03", "late=0.015", "num_workers=1")
    done = record(tmp_path / "job", *job, options=("--tracer", "python"))
    assert done.status == 0, done.err
    found = load_workload(str(tmp_path / "job" / "workload.toml")).accelerator
    assert (found.name, found.provenance, found.in_flight) == ("simulated GPU", "recorded", 2), done.err
    assert found.step_seconds == pytest.approx(0.03, rel=0.1) and "on the GPU" in done.err


OWN_LOOP = """
import queue, sys, threading, time
from pathlib import Path
from feedrate import mark_step
files, batches = sorted(Path(sys.argv[1]).glob("*.dat")), queue.Queue(2)
def read():
    for step in range(48):
        batches.put([path.read_bytes() for path in files[2 * step : 2 * step + 2]])
if sys.argv[2] == "thread":
    threading.Thread(target=read, daemon=True).start()
for step in range(48):
    if sys.argv[2] == "turn":
        [path.read_bytes() for path in files[2 * step : 2 * step + 2]]
    else:
        batches.get()
    time.sleep(0.01)
    mark_step(2)
"""


@TRACED
@pytest.mark.parametrize(
    ("how", "workers", "prefetch"), [("turn", 1, 0), pytest.param("thread", 1, 1, marks=pytest.mark.long)]
)
def test_a_loop_of_the_jobs_own_marks_its_steps(how, workers, prefetch, tmp_path):
    data, out = make_files(tmp_path / "data", [20_000] * 96), tmp_path / "job"
    job = (sys.executable, "-c", OWN_LOOP, data, how)
    done = feedrate("record", "--out", out, "--no-check", "--traced-steps", "43", "--", *job)
    assert done.status == 0, done.err
    found = load_workload(str(out / "workload.toml"))
    loader = found.loader
    assert (loader.batch_size, loader.workers, loader.prefetch) == (2, workers, prefetch), done.err
    assert found.accelerator.step_seconds > 0.005 and not found.access.bytes_read
    (seen,) = json.loads((out / "record.json").read_text())["loaders"]
    assert seen["steps"] == 48 and seen["settings"]["marked"]
    # Reads before the first mark are not for a step; the tracer may be behind by some.
    assert 80 <= seen["reads"]["files"] <= 96 and "others" in seen and not seen["others"]


@pytest.mark.long
@TRACED
def test_parts_slices_and_shards_are_told_apart_and_replayed(tmp_path):
    small = make_files(tmp_path / "small", [400_000] * 24)
    large = make_files(tmp_path / "large", [64 * 65536])
    for kind, folder, words in (
        ("parts", small, ()),
        ("slices", large, ()),
        ("crops", large, ()),
        ("direct", large, ()),
        ("shards", small, ("each=20000",)),
    ):
        # How much of the batches in flight has been read is not known: 4 % of a hundred steps.
        more = ("--traced-steps", "400")
        done = record(tmp_path / kind, kind, folder, "step=0.005", "batch_size=1", *words, options=more)
        assert done.status == 0, done.err
        found = load_workload(str(tmp_path / kind / "workload.toml"))
        if kind == "parts":
            assert (found.sample.samples_per_file, found.access.places) == (1, ())
            assert found.access.bytes_read == 65536 and found.access.pattern == "random"
            assert found.access.buffered
        elif kind == "crops":
            # Now and then the next crop is as near as a chunk of the same.
            assert found.sample.samples_per_file == 400
            assert found.access.bytes_read == pytest.approx(3 * 16384, rel=0.1)
            assert mode(found.access.places) == (0, 16384, 131072, 16384, 262144, 16384)
        elif kind in ("slices", "direct"):
            assert found.access.buffered == (kind == "slices")
            assert (found.sample.samples_per_file, found.access.bytes_read) == (64, 0)
            assert found.access.pattern == "random" and found.loader.block_bytes == 65536
        else:
            assert found.sample.samples_per_file == 20 and found.access.pattern == "sequential"
    data = tmp_path / "replay"
    assert feedrate("generate", data, "--recipe", tmp_path / "parts" / "recipe.toml").status == 0
    for loader in ("torch", "direct"):
        out = tmp_path / f"by-{loader}"
        done = feedrate(
            "run", data, "--workload", tmp_path / "parts" / "workload.toml", "--loader", loader,
            "--steps", "10", "--out", out,
        )  # fmt: skip
        assert done.status == 0, done.err
        run = json.loads((out / "run.json").read_text())
        assert run["points"][0]["bytes"] == 10 * 65536


@pytest.mark.long
@TRACED
def test_two_loaders_a_user_sitecustomize_and_names(tmp_path):
    data = make_files(tmp_path / "data", [50_000] * 64)
    make_files(data / "valid", [10_000] * 6)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text(
        f"import pathlib\nwith pathlib.Path({str(tmp_path / 'called')!r}).open('a') as f: f.write('x')\n"
    )
    out = tmp_path / "job"
    done = record(
        out, "two", data, "num_workers=0", options=("--keep-names", "--warmup", "1"),
        PYTHONPATH=os.pathsep.join([str(tmp_path / "own"), os.environ.get("PYTHONPATH", "")]),
    )  # fmt: skip
    assert done.status == 0, done.err
    assert (tmp_path / "called").exists()
    seen = json.loads((out / "record.json").read_text())
    read = {loader["settings"]["sampler"]: loader["reads"]["bytes"] for loader in seen["loaders"]}
    assert read == {"custom": 60_000, "RandomSampler": 64 * 50_000}
    assert load_workload(str(out / "workload.toml")).loader.batch_size == 4
    assert sum("patient" in name for name in seen["names"]) == 70


@pytest.mark.long
@pytest.mark.parametrize("tracer", TRACERS)
def test_a_job_that_kills_itself_and_one_without_a_loader(tracer, tmp_path):
    data = make_files(tmp_path / "data", [50_000] * 24)
    done = record(tmp_path / "killed", "files", data, "status=-9", options=("--tracer", tracer))
    assert done.status == -signal.SIGKILL, done.err
    assert (tmp_path / "killed" / "record.json").exists()
    done = record(tmp_path / "none", "none", data, options=("--tracer", tracer))
    assert done.status == 0
    lines = [line for line in done.err.splitlines() if "no DataLoader" in line]
    assert "24 data files of 1.2 MB" in lines[0]
    assert not (tmp_path / "none" / "workload.toml").exists()


@TRACED
def test_a_python_that_ignores_its_environment_is_not_taken_for_a_job_without_a_loader(tmp_path):
    data = make_files(tmp_path / "data", [50_000] * 24)
    done = feedrate("record", "--out", tmp_path / "out", "--", sys.executable, "-I", JOBS, "none", data)
    assert done.status == 0 and "used" not in done.err, done.err
    assert "no Python process of the job could be watched: start Python without -I" in done.err
    assert "could be seen; all processes: no data files were seen" in done.err


@pytest.mark.parametrize("tracer", [TRACERS[0], pytest.param("python", marks=pytest.mark.long)])
def test_a_recording_is_checked_by_a_replay_of_the_same_files(tracer, tmp_path):
    data, out = make_files(tmp_path / "data", [20_000] * 96), tmp_path / "job"
    job = ("--", sys.executable, JOBS, "files", data, "step=0.02", "epochs=2", "batch_size=2")
    before = sorted(data.iterdir())
    done = feedrate("record", "--out", out, "--tracer", tracer, "--traced-steps", "20", *job)
    assert done.status == 0 and done.out == "steps 96\n", done.err
    job = load_workload(str(out / "workload.toml")).job.replay
    assert job is not None, done.err
    # A busy machine may make the two differ: then the recording is not trusted, and says so.
    assert ("not to be trusted" in done.err) == (not job.trusted) == bool(job.why)
    assert f"your job: {job.samples_per_second:.1f} samples/s" in done.err
    assert 0 < job.samples_per_second <= 101 and 0 < job.replay_samples_per_second <= 120
    made = {path for path in data.iterdir() if path.suffix == ".bin"}  # the job's own
    assert sorted(set(data.iterdir()) - made) == before
    assert all(b"patient" not in path.read_bytes() for path in out.iterdir())


def test_what_is_in_the_way_is_not_touched(tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "mine.txt").write_text("mine")
    done = feedrate("record", "--out", tmp_path / "job", "--force", "--", "true")
    assert done.status == 2 and "mine.txt" in done.one_line()
    done = feedrate("record", "--out", tmp_path / "other", "--", "no-such-program")
    assert done.status == 5 and "no-such-program" in done.one_line()


@pytest.mark.long
@TRACED
def test_ranks_of_torchrun_and_of_mpirun_are_one_recording(tmp_path):
    data = make_files(tmp_path / "data", [30_000] * 64)
    torchrun = Path(sys.executable).parent / "torchrun"
    launched = (torchrun, "--standalone", "--nproc-per-node", "2", JOBS, "files", data, "step=0.01")
    done = feedrate("record", "--out", tmp_path / "torchrun", "--", *launched)
    assert done.status == 0, done.err
    command = ("--", sys.executable, JOBS, "files", data, "step=0.01")
    done = feedrate("record", "--out", tmp_path / "mpirun", *command, mpirun=2)
    assert done.status == 0, done.err
    for name in ("torchrun", "mpirun"):
        seen = json.loads((tmp_path / name / "record.json").read_text())
        assert sorted(loader["rank"] for loader in seen["loaders"]) == [0, 1]
        recipe, workload = (tmp_path / name / file for file in ("recipe.toml", "workload.toml"))
        assert load_recipe(str(recipe)).files == 64
        found = load_workload(str(workload))
        assert found.training.sync == "step"
        assert ("several recorders" in found.job.unchecked) == (name == "mpirun")


@pytest.mark.long
def test_a_loop_in_a_notebook_is_recorded_until_it_ends(tmp_path):
    data = make_files(tmp_path / "data", [30_000] * 64)
    code = f"""
import sys; sys.path.insert(0, {str(JOBS.parent)!r})
from pathlib import Path
import jobs
from emulator.plugins.recorder import recording
loader = jobs.DataLoader(jobs.Files(Path({str(data)!r})), 4, shuffle=True, num_workers=2)
with recording({str(tmp_path / "job")!r}, warmup=2):
    jobs.train(loader, 0.01)
jobs.train(loader, 0.001)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (loader,) = json.loads((tmp_path / "job" / "record.json").read_text())["loaders"]
    assert (loader["steps"], loader["reads"]["files"]) == (16, 64)


def test_a_loop_that_fails_in_a_notebook_leaves_an_incomplete_recording(tmp_path, capsys):
    with pytest.raises(ZeroDivisionError), recording(tmp_path / "job"):
        raise ZeroDivisionError
    assert not json.loads((tmp_path / "job" / "record.json").read_text())["complete"]
    assert "no DataLoader" in capsys.readouterr().err


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
    asked = loader["read_steps"] * loader["ahead"] * 4
    assert asked - 32 <= loader["reads"]["visits"] <= asked + 8
    steps = read_rows(out / "profile.parquet", SEEN)
    assert abs(steps["traced"].sum() - loader["read_steps"]) <= 1
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
    assert loader["reads"]["visits"] == 64 and loader["reads"]["bytes"] == 64 * 30_000


@TRACED
def test_the_tracer_lets_go_of_workers_that_start_programs(tmp_path):
    """A worker in vfork waits for its child, which strace may have stopped: the job hung."""
    data, out = make_files(tmp_path / "data", [30_000] * 96), tmp_path / "job"
    done = record(out, "piped", data, "step=0.001", "epochs=2", options=("--traced-steps", "20"))
    assert done.status == 0 and done.out == "steps 48\n", done.err
    (loader,) = json.loads((out / "record.json").read_text())["loaders"]
    assert loader["batch_samples"] == 4, "files, not the bytes of the tensor"
    assert load_workload(str(out / "workload.toml")).sample.samples_per_file == 1


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
    asked = loader["read_steps"] * loader["ahead"] * 4
    assert asked - 32 <= loader["reads"]["visits"] <= asked + 8


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
        assert until(lambda: not folder.exists())
        assert until(lambda: not users(folder.name)), users(folder.name)
        assert until(lambda: not is_alive(job))
    finally:
        running.kill()
