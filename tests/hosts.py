"""Hosts on one machine for tests that need several: see tests/lab/hosts.sh. Root only."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from command import ROOT_AND_OVERSUBSCRIBED

HOSTS = ("frh1", "frh2", "frh3")
LAB = Path(__file__).parent / "lab"
AGENT = "/run/feedrate-hosts/agent"


def lab(script: str, *words: object) -> None:
    """Run a script of tests/lab; it must succeed."""
    subprocess.run([LAB / script, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def on_hosts(per_host: int, *words: object) -> subprocess.CompletedProcess[str]:
    """`feedrate WORDS` under an mpirun on the first host, `per_host` ranks on each."""
    mpirun = Path(sys.executable).parent / "mpirun"
    command = [
        mpirun, "--prtemca", "plm_ssh_agent", AGENT, "--prtemca", "prte_if_include", "eth0",
        "--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp", "--mca", "btl_tcp_if_include", "10.78.0.0/24",
        "--mca", "osc", "^ucx", "--host", ",".join(f"{host}:{per_host}" for host in HOSTS),
        "--map-by", "slot:oversubscribe", "--bind-to", "none", "-n", per_host * len(HOSTS),
        sys.executable, "-m", "emulator", *words,
    ]  # fmt: skip
    environment = {**os.environ, **ROOT_AND_OVERSUBSCRIBED}
    environment.pop("PRTE_MCA_rmaps_default_mapping_policy")  # --map-by says it
    return subprocess.run(
        [AGENT, HOSTS[0], shlex.join(map(str, command))],
        capture_output=True, text=True, timeout=170, check=False, env=environment,
    )  # fmt: skip
