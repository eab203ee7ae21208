"""Telling whether MPI started us, and leaving mpirun's banners out of what the user reads."""

import pytest

from emulator.errors import DatasetError
from emulator.launch.launched import rank_hint, started_by_mpi
from emulator.launch.mpirun import without_banners
from emulator.run.comm import Comm, Quiet, agreed

RULE = "-" * 74 + "\n"


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


def test_banners_are_left_out_and_everything_else_stays():
    lines = [
        "feedrate: error: the sample is gone\n",
        RULE,
        "prterun detected that one or more processes exited with non-zero status\n",
        "  3\n",
        RULE,
        " \n",
        "a warning of a driver\n",
        RULE,
        "There are not enough slots available in the system\n",
        RULE,
    ]
    assert list(without_banners(lines)) == [lines[0], *lines[6:]]


def test_lines_in_which_open_mpi_says_that_others_are_gone_are_left_out():
    hidden: list[str] = []
    lines = [
        "[node1:14851] pmix_ptl_base: send_msg: write failed: Connection reset by peer (104) [sd = 24]\n",
        "[node1:77] PRTE ERROR: Unreachable in file odls.c\n",
    ]
    assert list(without_banners([*lines, "[node1:77] a line of a driver\n"], hidden)) == [
        "[node1:77] a line of a driver\n"
    ]
    assert hidden == lines


def test_nul_bytes_that_mpirun_forwards_are_left_out():
    """Open MPI 5 was seen to put one before the words of a rank that was ending."""
    assert list(without_banners(["\0feedrate: error: rank 1\n"])) == ["feedrate: error: rank 1\n"]


def test_an_error_before_the_run_is_said_once_and_ends_quietly(capsys):
    def fail() -> None:
        raise DatasetError("the sample x is not there", "check the path")

    with pytest.raises(Quiet) as caught:
        agreed(Comm(), fail)
    assert caught.value.code == 3
    assert capsys.readouterr().err == "feedrate: error: the sample x is not there: check the path\n"
