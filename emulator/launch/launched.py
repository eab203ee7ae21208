"""What the environment says of the mpirun or srun that started this process."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MPI_LOCALRANKID")


class Claim(NamedTuple):
    """The rank and size that a launcher has set in this process's environment."""

    launcher: str
    rank: int
    size: int


def started_by_mpi(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if mpirun, mpiexec or srun started this process as a rank."""
    by_srun = "SLURM_PROCID" in environment and int(environment.get("SLURM_STEP_NUM_TASKS") or 0) > 1
    return by_srun or any(name in environment for name in _RANK_VARIABLES)


def rank_hint(environment: Mapping[str, str] = os.environ) -> int:
    """Return this process's rank according to its environment; 0 without MPI."""
    for name in (*_RANK_VARIABLES[:3], "SLURM_PROCID"):
        if environment.get(name, "").isdigit():
            return int(environment[name])
    return 0


def claims(environment: Mapping[str, str] = os.environ) -> tuple[Claim, ...]:
    """Return the claims of all launchers; several if one started another."""
    claimed: list[Claim] = []
    for launcher, rank, size in (
        ("Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("MPICH's mpiexec, or srun --mpi=pmi2,", "PMI_RANK", "PMI_SIZE"),
        ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ):
        numbers = environment.get(rank, ""), environment.get(size, "")
        # mpirun in an allocation starts its daemons with srun, and ranks inherit srun's variables. These
        # count only without those of another launcher.
        if all(number.isdigit() for number in numbers) and not (launcher == "srun" and claimed):
            claimed.append(Claim(launcher, *map(int, numbers)))
    return tuple(claimed)


def shared_segments(process: int | str = "self") -> list[Path]:
    """Return the names in /dev/shm of MPICH's shared memory that `process` has mapped. Raises OSError.

    MPICH removes them when it ends, but not if ranks are killed. So remove them once all ranks have mapped
    it, or if a rank is killed before that.
    """
    maps = Path(f"/proc/{process}/maps").read_text()
    return [Path(name) for name in re.findall(r" (/dev/shm/mpich_shm_\S+)$", maps, re.MULTILINE)]
