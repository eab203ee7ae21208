"""What launchers and libraries of MPI say: the texts and variables are those of real ones."""

import signal
import subprocess
import sys

import pytest

from emulator.errors import DatasetError, LaunchError
from emulator.launch.comm import Comm, Quiet, agreed
from emulator.launch.launched import Claim, claims, rank_hint, started_by_mpi
from emulator.launch.mpi import library_of, require_family, require_same, require_world

WHEEL = library_of(
    "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11, repo rev: v5.0.11rc1"
)
DEBIAN = library_of("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022")
MPICH = library_of(
    "MPICH Version:      5.0.2\nMPICH Device:       ch4:ucx ofi\nMPICH configure:    --with-pm=hydra\n"
)
PMIX_MPICH = library_of("MPICH Version:      4.2.0\nMPICH configure:    --with-pmix=/usr --with-pm=no\n")
INTEL = library_of("Intel(R) MPI Library 2021.9 for Linux* OS\n")

OPENMPI_4 = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "1"}
HYDRA_4 = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
SRUN_4 = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}


def test_libraries_are_known_by_what_they_say():
    assert [str(one) for one in (WHEEL, DEBIAN, MPICH, INTEL)] == [
        "Open MPI 5.0.11", "Open MPI 4.1.4", "MPICH 5.0.2", "MPICH 2021.9",
    ]  # fmt: skip
    assert library_of("MVAPICH2 Version      :\t2.3.7").family == "MPICH"  # by launcher and binary interface
    assert library_of("another 1.0").family is None


@pytest.mark.parametrize(
    ("environment", "library"),
    [
        (OPENMPI_4, WHEEL),
        (OPENMPI_4, DEBIAN),
        (HYDRA_4, MPICH),
        (HYDRA_4, INTEL),
        ({**SRUN_4, "PMIX_RANK": "1"}, WHEEL),
        ({**SRUN_4, "PMIX_RANK": "1"}, PMIX_MPICH),
        ({**SRUN_4, "PMI_RANK": "1", "PMI_SIZE": "4"}, MPICH),
        ({**SRUN_4, "PMI_RANK": "1", "PMI_SIZE": "4"}, DEBIAN),  # some are built with PMI2
        # mpirun within an allocation: its daemons are the tasks of srun
        ({**OPENMPI_4, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, WHEEL),
        # one launcher under another: the inner one's world is as good as the outer one's
        ({**HYDRA_4, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, MPICH),
    ],
)
def test_pairs_that_work_pass(environment, library):
    require_family(library, environment)
    require_world(1, 4, library, environment)


@pytest.mark.parametrize(
    ("environment", "library", "words"),
    [
        (OPENMPI_4, MPICH, ("Open MPI's mpirun started 4 ranks", "MPICH 5.0.2", "feedrate[mpi]")),
        (HYDRA_4, WHEEL, ("MPICH's mpiexec", "started 4 ranks", "Open MPI 5.0.11", "MPI4PY_MPIABI=mpich")),
        (HYDRA_4, DEBIAN, ("MPICH's mpiexec", "started 4 ranks", "Open MPI 4.1.4")),
        ({**SRUN_4, "PMIX_RANK": "1"}, MPICH, ("srun started 4 ranks", "MPICH 5.0.2", "pmi2")),
        (SRUN_4, WHEEL, ("srun started 4 ranks", "Open MPI 5.0.11")),
        (SRUN_4, DEBIAN, ("srun started 4 ranks", "Open MPI 4.1.4")),
        ({**SRUN_4, "PMI_RANK": "1", "PMI_SIZE": "4"}, WHEEL, ("srun --mpi=pmi2, started 4 ranks", "5.0.11")),
    ],
)
def test_what_cannot_start_is_said_before_it_is_tried(environment, library, words):
    with pytest.raises(LaunchError) as caught:
        require_family(library, environment)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("environment", "library", "world"),
    [
        (SRUN_4, MPICH, (0, 1)), (OPENMPI_4, WHEEL, (0, 1)),
        (OPENMPI_4, WHEEL, (2, 4)),
    ],
)  # fmt: skip
def test_another_world_than_the_launchers_is_refused(environment, library, world):
    require_family(library, environment)  # it may be able to
    with pytest.raises(LaunchError, match=f"started 4 ranks.*MPI sees {world[1]}"):
        require_world(*world, library, environment)


def test_a_process_that_nobody_started_may_be_anything():
    assert claims({}) == () and claims({"SLURM_PROCID": "0"}) == ()
    require_world(0, 1, WHEEL, {"SLURM_PROCID": "0"})  # an sbatch script
    assert claims(SRUN_4) == (Claim("srun", 1, 4),)


@pytest.mark.parametrize(
    ("environment", "started", "rank"),
    [
        ({}, False, 0),
        ({"OMPI_COMM_WORLD_RANK": "3"}, True, 3),
        ({"PMI_RANK": "2"}, True, 2),
        ({"PMIX_RANK": "1"}, True, 1),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, True, 1),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, False, 0),
        ({"SLURM_PROCID": "0"}, False, 0),  # the batch script of an sbatch job
    ],
)
def test_who_started_us(environment, started, rank):
    assert started_by_mpi(environment) is started
    assert rank_hint(environment) == rank


def test_an_error_before_the_run_is_said_once_and_ends_quietly(capsys):
    def fail() -> None:
        raise DatasetError("the sample x is not there", "check the path")

    with pytest.raises(Quiet) as caught:
        agreed(Comm(), fail)
    assert caught.value.code == 3
    assert capsys.readouterr().err == "feedrate: error: the sample x is not there: check the path\n"


def test_another_feedrate_on_one_host_is_refused_with_its_name():
    require_same({"a": "0.2.0-f38c", "b": "0.2.0-f38c"})
    with pytest.raises(LaunchError, match="0.2.0-f38c on a, c, 0.1.0-77aa on b"):
        require_same({"a": "0.2.0-f38c", "b": "0.1.0-77aa", "c": "0.2.0-f38c"})


LAUNCHER = """
import signal, subprocess, sys
from emulator.launch.process import set_name
set_name("mpirun")
subprocess.Popen([sys.executable, "-c", sys.argv[1]])
signal.pause()
"""
RANK = """
import os, signal
from emulator import notes
from emulator.launch.supervise import watched
os.environ.update({"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})
watched(0)
notes.page().fail("", 6)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_mpirun_does_not_outlive_a_rank_that_was_killed_for_long():
    """It waits a quarter of an hour where a host is lost, too."""
    with subprocess.Popen([sys.executable, "-c", LAUNCHER, RANK]) as launcher:
        try:
            assert launcher.wait(timeout=90) == -signal.SIGKILL
        finally:
            launcher.kill()
