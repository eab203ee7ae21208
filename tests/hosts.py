"""Hosts on one machine for tests that need several: see tests/lab/hosts.sh. Root only."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from command import ROOT_AND_OVERSUBSCRIBED

LAB = Path(__file__).parent / "lab"
NAME = f"fr{os.getpid()}h"
"""Beginning of the names of this run's hosts: two runs at once do not meet."""
HOSTS = tuple(f"{NAME}{number}" for number in (1, 2, 3))
AGENT = f"/run/{NAME}/agent"


def lab(script: str, *words: object) -> None:
    """Run a script of tests/lab; it must succeed."""
    environment = {**os.environ, "FEEDRATE_LAB": NAME}
    subprocess.run([LAB / script, *map(str, words)], check=True, stdout=subprocess.DEVNULL, env=environment)


def on_hosts(per_host: int, *words: object) -> subprocess.CompletedProcess[str]:
    """`feedrate WORDS` under an mpirun on the first host, `per_host` ranks on each."""
    run = start_on_hosts(per_host, *words)
    try:
        out, errors = run.communicate(timeout=170)
    finally:
        run.kill()
    return subprocess.CompletedProcess(run.args, run.returncode, out, errors)


def start_on_hosts(
    per_host: int, *words: object, before: Sequence[object] = (), folder: Path = Path()
) -> subprocess.Popen[str]:
    """The same, while it runs, in `folder`; each rank is a command that begins with `before`."""
    mpirun = Path(sys.executable).parent / "mpirun"
    command = [
        mpirun, "--prtemca", "plm_ssh_agent", AGENT, "--prtemca", "prte_if_include", "eth0",
        "--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp", "--mca", "btl_tcp_if_include", "10.78.0.0/24",
        "--mca", "osc", "^ucx", "--host", ",".join(f"{host}:{per_host}" for host in HOSTS),
        "--map-by", "slot:oversubscribe", "--bind-to", "none", "-n", per_host * len(HOSTS),
        "--wdir", folder.absolute(), *before, sys.executable, "-m", "emulator", *words,
    ]  # fmt: skip
    environment = {**os.environ, **ROOT_AND_OVERSUBSCRIBED}
    environment.pop("PRTE_MCA_rmaps_default_mapping_policy")  # --map-by says it
    return _on_first(command, environment)


def start_with_mpich(per_host: int, *words: object) -> subprocess.Popen[str]:
    """The same by MPICH, of which make test-multihost has a wheel in an environment of its own."""
    mpich = LAB.parents[1] / ".venv-mpich"
    command = [
        mpich / "bin" / "mpiexec", "-launcher", "ssh", "-launcher-exec", AGENT, "-iface", "eth0",
        "-hosts", ",".join(f"{host}:{per_host}" for host in HOSTS), "-n", per_host * len(HOSTS),
        sys.executable, "-m", "emulator", *words,
    ]  # fmt: skip
    library = {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(mpich / "lib")}
    return _on_first(command, {**os.environ, **library, "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0"})


def _on_first(command: list[object], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [AGENT, HOSTS[0], shlex.join(map(str, command))],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def pids_on(host: str, word: str = "") -> list[int]:
    """Processes in the network namespace of `host`, those with `word` in their command line."""
    listed = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True, check=True)
    found = []
    for pid in map(int, listed.stdout.split()):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if not word or (word.encode() in words and b"mpirun" not in b" ".join(words)):
                found.append(pid)
    return found
