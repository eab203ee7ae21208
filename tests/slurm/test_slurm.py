"""launch/slurm.sbatch on a real Slurm, started here on loopback. Needs root: make test-slurm."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from emulator.record.out import read_result

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "lab" / "slurm.sh"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Environment of a user of the cluster: SLURM_CONF, and feedrate on PATH."""
    folder = tmp_path_factory.mktemp("slurm")
    try:
        subprocess.run([SCRIPT, "up", folder, "3"], check=True)
        yield {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }  # fmt: skip
    finally:
        daemons = [int(file.read_text()) for file in folder.glob("*.pid")]
        subprocess.run([SCRIPT, "down", folder], check=True)
        deadline = time.monotonic() + 20
        while left := [pid for pid in daemons if Path(f"/proc/{pid}").exists()]:
            assert time.monotonic() < deadline, f"daemons are left: {left}"
            time.sleep(0.1)


def scheduled(environment, folder: Path, *words: object) -> str:
    """What a command of Slurm printed."""
    done = subprocess.run(
        list(map(str, words)), cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def submit(environment, folder: Path, *words: object) -> str:
    """Submit, wait for the end, and return what the job printed."""
    return ended(environment, folder, scheduled(environment, folder, "sbatch", "--parsable", *words))


def ended(environment, folder: Path, job: str) -> str:
    """Wait for the end of a job, and return what it printed."""
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        state = scheduled(environment, folder, "squeue", "-h", "-j", job, "-o", "%T")
        if not state:
            return (folder / f"feedrate-{job}.log").read_text()
        time.sleep(0.5)
    pytest.fail(f"job {job} is still {state}")


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_batch_file_runs_as_it_stands(environment, tiny, tmp_path, nodes):
    said = submit(
        environment, tmp_path, "--nodes", nodes, "--ntasks-per-node=2", ROOT / "launch" / "slurm.sbatch",
        tiny, "--workload", "unet3d-tiny", "--loader", "direct", "--counts", f"1,{2 * nodes}", "--steps", 8,
    )  # fmt: skip
    (out,) = (path for path in tmp_path.glob("feedrate-*") if path.is_dir())
    alone, together = read_result(out).points
    assert (alone.ranks, together.ranks) == (1, 2 * nodes), said
    assert [share.ranks for share in together.hosts] == [2] * nodes, said


SWEEP = ("--ntasks-per-node=2", ROOT / "launch" / "slurm.sbatch")
SLOW = ("--workload", "unet3d-tiny", "--loader", "direct", "--set", "accelerator.step_seconds=0.2")


def begun(environment, folder: Path, data: Path) -> tuple[str, Path]:
    """Submit a sweep of four counts, and return its job and its OUT when it has its first point."""
    words = ("--nodes", 2, *SWEEP, data, *SLOW, "--counts", "1,2,3,4", "--steps", 20)
    job = scheduled(environment, folder, "sbatch", "--parsable", *words)
    out, deadline = folder / f"feedrate-{job}", time.monotonic() + 120
    while not (out / "run.json").exists() or not read_result(out).points:
        assert time.monotonic() < deadline, (folder / f"feedrate-{job}.log").read_text()
        time.sleep(0.2)
    return job, out


def test_a_requeued_job_resumes(environment, tiny, tmp_path):
    job, out = begun(environment, tmp_path, tiny)
    first = read_result(out).points[0]
    scheduled(environment, tmp_path, "scontrol", "requeue", job)
    deadline = time.monotonic() + 100
    while scheduled(environment, tmp_path, "squeue", "-h", "-j", job, "-o", "%T") != "PENDING":
        assert time.monotonic() < deadline
        time.sleep(0.5)
    # Slurm would wait for two minutes before it starts a job again.
    scheduled(environment, tmp_path, "scontrol", "update", f"JobId={job}", "StartTime=now")
    said = ended(environment, tmp_path, job)
    result = read_result(out)
    assert result.status == "complete", said
    assert [point.ranks for point in result.points] == [1, 2, 3, 4] and result.points[0] == first, said


def test_what_scancel_ended_is_resumed_by_sbatch(environment, tiny, tmp_path):
    job, out = begun(environment, tmp_path, tiny)
    scheduled(environment, tmp_path, "scancel", job)
    ended(environment, tmp_path, job)
    assert read_result(out).status == "incomplete"
    said = submit(environment, tmp_path, "--nodes", 2, *SWEEP, "--resume", out)
    result = read_result(out)
    assert (result.status, len(result.points)) == ("complete", 4), said


def srun(environment, *words: object) -> subprocess.CompletedProcess[str]:
    """Ranks of `feedrate run` that srun starts by itself."""
    return subprocess.run(
        ["srun", *map(str, words), "--workload", "unet3d-tiny", "--loader", "direct", "--steps", "4"],
        env=environment, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip


def test_pmix_over_three_nodes_is_a_result(environment, tiny, tmp_path):
    out = tmp_path / "out"
    done = srun(environment, "--mpi=pmix", "-N3", "-n9", "feedrate", "run", tiny, "--out", out)
    assert done.returncode == 0, done.stderr
    (point,) = read_result(out).points
    assert {share.host: share.ranks for share in point.hosts} == {"n1": 4, "n2": 4, "n3": 1}


def test_pmi2_over_three_nodes_with_an_open_mpi_that_lacks_it_is_one_line(environment, tiny, tmp_path):
    out = tmp_path / "out"
    done = srun(environment, "--mpi=pmi2", "-N3", "-n3", "feedrate", "run", tiny, "--out", out)
    said = [line for line in done.stderr.splitlines() if line.startswith("feedrate: error")]
    assert len(said) == 1 and "started 3 ranks, but mpi4py uses Open MPI" in said[0], done.stderr
    assert "Traceback" not in done.stderr and not out.exists()


def test_debians_open_mpi_over_pmix(environment, tiny, tmp_path):
    debian = {**environment, "MPI4PY_LIBMPI": "/usr/lib/x86_64-linux-gnu/libmpi.so.40"}
    done = srun(debian, "--mpi=pmix", "-N3", "-n3", "feedrate", "run", tiny, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr


def test_a_rank_that_is_stopped_at_its_start_ends_the_step(environment, tiny, tmp_path):
    """The others wait for it in MPI_Init, and srun for all of them."""
    stops = '[ "$SLURM_PROCID" = 0 ] || kill -STOP $$; exec "$@"'
    words = ("bash", "-c", stops, "bash", "feedrate", "run", tiny)
    done = srun(environment, "--mpi=pmix", "-N3", "-n3", *words, "--out", tmp_path / "out")
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("feedrate: error")]
    assert len(said) == 1 and "for 3 ranks to start: a rank is stopped" in said[0], done.stderr


def test_srun_without_a_process_manager_is_told_from_one_rank(environment, tiny, tmp_path):
    done = srun(environment, "--mpi=none", "-n2", "feedrate", "run", tiny, "--out", tmp_path / "out")
    assert done.returncode != 0
    assert done.stderr.count("srun started 2 ranks, but mpi4py uses Open MPI") == 1
    assert "Traceback" not in done.stderr
