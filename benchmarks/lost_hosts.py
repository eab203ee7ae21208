"""Measures how runs over several hosts end under faults. As root, on network-namespace hosts (tests/lab).

    python benchmarks/lost_hosts.py --launcher mpirun [--hosts 3,5,12] [--faults stop,kill] [--after SECONDS]
        [--out FILE]

Each row is one `feedrate run` with a barrier after each step and --storage-timeout 6s, one rank a host,
started by `mpirun` (Open MPI), `mpiexec` (MPICH), `srun` (Slurm), or by `feedrate` itself, which puts as many
ranks on one host. Once steps are counted, or --after the start and once the second host has a rank, the fault
strikes the second host or rank:

    stop, kill   its rank gets SIGSTOP, SIGKILL
    network      its link is taken down, for good; blip: for 2 s
    clock        its CLOCK_MONOTONIC is 100,000 s ahead from the start
    slow         its rank is stopped half of the time, for 0.25 s each
    version      it has another feedrate
    chunks       MooseFS's only chunk server is killed; osd: one of Ceph's two OSDs is, the dataset being rados://

    s            from the fault to the end of the launcher (clock, slow, blip: of 200 steps)
    said         number of lines with `feedrate: error:`, and the first one; or a line of the launcher's
    left         processes and files of feedrate 10 s later, but for a host that is stopped or cut off
    result       `status` of run.json, flags, and whether `feedrate report` reads it
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import namespaces
from namespaces import AGENT, NAME
from processes import AS_ROOT, feedrate, machine, publish, table_line

import emulator
from emulator.record.steps import read_steps

ROOT = Path(__file__).parents[1]
LAB = ROOT / "tests" / "lab"
MPICH = ROOT / ".venv-mpich"
VICTIM = f"{NAME}2"
LIMIT = 60.0
"""Seconds after which a run counts as one that hangs."""
ON_ONE_HOST = ("stop", "kill", "slow")
GOES_ON = ("blip", "clock", "slow")
FAULTS = ("stop", "kill", "network", "blip", "clock", "slow", "version", "chunks", "osd")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--launcher", choices=("feedrate", "mpirun", "mpiexec", "srun"), required=True)
    parser.add_argument("--hosts", default="3,5,12")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument(
        "--after", type=float, help="seconds after the start; default: once steps are counted"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    publish("Faults of hosts", machine(), table(given), given.out)


def table(given: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table as they are measured."""
    yield table_line("launcher", "hosts", "fault", "s", "status", "said", "left", "result")
    yield table_line(*("---" for _ in range(8)))
    for hosts in map(int, given.hosts.split(",")):
        with namespaces.hosts(hosts) as folder, ExitStack() as stack:
            subprocess.run(
                feedrate("generate", folder / "data", "--recipe", "tiny", "--files", 96), check=True
            )
            if given.launcher == "srun":
                stack.enter_context(slurm(folder, hosts))
            for fault in given.faults.split(","):
                if given.launcher != "feedrate" or fault in ON_ONE_HOST:
                    yield table_line(
                        given.launcher,
                        str(hosts),
                        fault,
                        *cell(given.launcher, hosts, fault, folder, given.after),
                    )


def lab(script: str, *words: object, **environment: str) -> None:
    subprocess.run(
        [LAB / script, *map(str, words)], check=True, stdout=subprocess.DEVNULL,
        env={**os.environ, "FEEDRATE_LAB": NAME, **environment},
    )  # fmt: skip


@contextmanager
def slurm(folder: Path, hosts: int) -> Iterator[None]:
    """Slurm's daemons on the hosts."""
    lab("slurm.sh", "up", folder / "slurm", hosts)
    os.environ["SLURM_CONF"] = str(folder / "slurm" / "slurm.conf")
    try:
        yield
    finally:
        lab("slurm.sh", "down", folder / "slurm", hosts)


@contextmanager
def dataset(fault: str, folder: Path, hosts: int) -> Iterator[tuple[object, Callable[[], None]]]:
    """The dataset that `fault` asks for, and what kills its server."""
    if fault == "chunks":
        shared = folder / "mfs"
        lab("sharedfs.sh", "up", shared, hosts)
        try:
            shutil.copytree(folder / "data", shared / f"mnt-{NAME}1" / "tiny")
            yield shared / "data" / "tiny", lambda: lab("sharedfs.sh", "kill", shared)
        finally:
            with suppress(subprocess.CalledProcessError):
                lab("sharedfs.sh", "revive", shared)
            lab("sharedfs.sh", "down", shared, hosts)
            lab_agent(folder)
    elif fault == "osd":
        ceph = folder / "ceph"
        words = [LAB / "ceph.sh", "up", ceph, 17481]
        environment = {**os.environ, "FEEDRATE_ADDRESS": "10.78.0.1"}
        subprocess.run(
            namespaces.on(1, shlex.join(map(str, words))),
            check=True,
            stdout=subprocess.DEVNULL,
            env=environment,
        )
        os.environ["CEPH_CONF"] = str(ceph / "ceph.conf")
        try:
            generate = feedrate("generate", "rados://bench/data", "--recipe", "tiny", "--files", 96)
            subprocess.run(namespaces.on(1, shlex.join(generate)), check=True)
            osd = int((ceph / "osd.0.pid").read_text())
            yield "rados://bench/data", lambda: os.kill(osd, signal.SIGKILL)
        finally:
            lab("ceph.sh", "down", ceph)
            shutil.rmtree(ceph, ignore_errors=True)
    else:
        yield folder / "data", lambda: None


def lab_agent(folder: Path) -> None:
    """Have the agent bind no mount of a file system that is gone."""
    agent = Path(AGENT)
    agent.write_text(re.sub(r'"mount --bind \S+ \S+ && \$\*"', '"$*"', agent.read_text()))


def cell(launcher: str, hosts: int, fault: str, folder: Path, after: float | None) -> tuple[str, ...]:
    """One run under a fault: seconds, status, what was said, what is left, the result."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    with dataset(fault, folder, hosts) as (data, kill_server):
        steps = 200 if fault in GOES_ON else 100000
        words = [
            "run", data, "--workload", "unet3d-tiny", "--loader", "direct", "--steps", steps, "--set",
            "training.sync=step", "--set", "loader.batch_size=1", "--set", "accelerator.step_batch_size=1",
            "--storage-timeout", "6s", "--out", out,
        ]  # fmt: skip
        run = started(launcher, hosts, fault, folder, feedrate(*words))
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.extend(run.stderr or ()), daemon=True)
        reader.start()
        begun = time.monotonic() + (LIMIT if after is None else after)
        while run.poll() is None and time.monotonic() < begun and not (after is None and steps_in(out)):
            time.sleep(0.02 if after else 0.2)
        if run.poll() is not None:
            return "0", f"{run.returncode} at its start", " ".join(errors), "", ""
        while after is not None and launcher != "feedrate" and not rank_on(launcher, str(out)):
            time.sleep(0.02)
        began = time.monotonic()
        undo = strike(launcher, fault, kill_server)
        with suppress(subprocess.TimeoutExpired):
            run.wait(LIMIT)
        took = time.monotonic() - began
        reader.join(2)
        left = what_is_left(launcher, hosts, fault, str(out))
        undo()
        ended = run.poll()
        for pid in ours(launcher, str(out)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.kill()
    said = [line.partition("feedrate: error: ")[2].strip() for line in errors if "feedrate: error:" in line]
    told = f"{len(said)}: {said[0][:150]}" if said else "nothing"
    theirs = re.search(r"[^\n]*(noticed that process rank|EXIT STRING|srun: error)[^\n]*", "".join(errors))
    if not said and theirs:
        told = f"the launcher: {theirs[0].strip()[:150]}"
    status = "hangs" if ended is None else str(ended)
    return f"{took:.1f}", status, told.replace(NAME, "host"), left, result_of(out)


def steps_in(out: Path) -> bool:
    with suppress(Exception):
        return (out / "spool").is_dir() and len(read_steps(out)) > 20
    return False


def started(launcher: str, hosts: int, fault: str, folder: Path, command: list[str]) -> subprocess.Popen[str]:
    """The run, a rank a host."""
    if fault in ("clock", "version"):
        other = folder / "other"
        if not other.exists():
            shutil.copytree(Path(emulator.__file__).parent, other / "emulator")
            with (other / "emulator" / "units.py").open("a") as file:
                file.write("# a change\n")
        there = {
            "clock": 'exec unshare --time --fork --monotonic 100000 "$@"',
            "version": f"export PYTHONPATH={other}",
        }
        command = [
            "bash",
            "-c",
            f'[ "$(hostname)" != {VICTIM} ] || {there[fault]}; exec "$@"',
            "bash",
            *command,
        ]
    environment = {**os.environ, **AS_ROOT}
    if launcher == "feedrate":
        command += ["-n", str(hosts)]
    elif launcher == "mpirun":
        command = namespaces.mpirun(dict.fromkeys(range(1, hosts + 1), 1), hosts, *command)
    elif launcher == "mpiexec":
        names = ",".join(f"{NAME}{host}:1" for host in range(1, hosts + 1))
        command = [
            *(str(MPICH / "bin" / "mpiexec"), "-launcher", "ssh", "-launcher-exec", AGENT, "-iface", "eth0"),
            *("-hosts", names, "-n", str(hosts), *command),
        ]
        environment |= {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(MPICH / "lib"), "FI_PROVIDER": "tcp"}
        environment |= {"FI_TCP_IFACE": "eth0"}
    else:
        rank = f'exec {AGENT} "$(hostname)" {shlex.quote(shlex.join(command))}'  # with the host's mounts
        command = ["srun", "--mpi=pmix", f"-N{hosts}", f"-n{hosts}", "bash", "-c", rank]
    return subprocess.Popen(
        namespaces.on(1, shlex.join(command)), env=environment, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        cwd=folder,  # not a checkout, whose feedrate all hosts would run
    )  # fmt: skip


def ours(launcher: str, word: str) -> list[int]:
    """The processes with `word` in their command line, launchers included."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if word.encode() in (process / "cmdline").read_bytes() and int(process.name) != os.getpid():
                found.append(int(process.name))
    return found


def on_host(pid: int, host: str) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/net").stat().st_ino == Path(f"/run/netns/{host}").stat().st_ino
    return False


def rank_on(launcher: str, hosts_out: str) -> int:
    """The process of the second rank."""
    ranks = []
    for pid in ours(launcher, hosts_out):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if Path(words[0].decode()).name.startswith("python") and b"emulator" in words[:4]:
                ranks.append(pid)
    if launcher != "feedrate":
        return next((pid for pid in ranks if on_host(pid, VICTIM)), 0)
    for folder in Path("/dev/shm").glob("feedrate-*"):
        with suppress(OSError, ValueError):
            pid = int((folder / "rank-1").read_text().split()[0])
            if on_host(pid, f"{NAME}1"):
                return pid
    raise LookupError("no second rank")


def strike(launcher: str, fault: str, kill_server: Callable[[], None]) -> Callable[[], object]:
    """Cause the fault; what undoes it."""
    link = ["ip", "-n", f"{NAME}sw", "link", "set", "p2"]
    out = f"/run/{NAME}/out"
    if fault in ("stop", "kill"):
        os.kill(rank_on(launcher, out), signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
    elif fault in ("network", "blip"):
        subprocess.run([*link, "down"], check=True)
        if fault == "network":
            return lambda: subprocess.run([*link, "up"], check=True)
        time.sleep(2)
        subprocess.run([*link, "up"], check=True)
    elif fault == "slow":
        pid, over = rank_on(launcher, out), threading.Event()

        def drag() -> None:
            with suppress(ProcessLookupError):
                while not over.is_set():
                    for number in (signal.SIGSTOP, signal.SIGCONT):
                        os.kill(pid, number)
                        time.sleep(0.25)

        threading.Thread(target=drag, daemon=True).start()
        return over.set
    else:
        kill_server()
    return lambda: None


def what_is_left(launcher: str, hosts: int, fault: str, out: str) -> str:
    """Processes and files in memory that are there 10 s after the end."""
    apart = VICTIM if fault in ("stop", "network") else ""
    deadline = time.monotonic() + 10
    while True:
        pids = [pid for pid in ours(launcher, out) if not (apart and on_host(pid, apart))]
        names = {path.name for path in Path("/dev/shm").glob("feedrate-*") if is_ours(path)}
        if (not pids and not names) or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return ", ".join(filter(None, (f"{len(pids)} processes" if pids else "", *sorted(names)))) or "nothing"


_before = set(Path("/dev/shm").glob("feedrate-*"))


def is_ours(path: Path) -> bool:
    """True unless it was there before, or another command's process that lives has its name."""
    owner = re.fullmatch(r"feedrate-[0-9a-f]{8}-(\d+)-\w+", path.name)
    lives = owner and Path(f"/proc/{owner[1]}").exists() and not on_host(int(owner[1]), f"{NAME}1")
    return path not in _before and not lives


def result_of(out: Path) -> str:
    if not (out / "run.json").exists():
        return "none"
    told = json.loads((out / "run.json").read_text())
    status = " ".join(
        [told["status"], *(flag["name"] for point in told["points"] for flag in point["flags"])]
    )
    read = subprocess.run(feedrate("report", out), capture_output=True, check=False).returncode == 0
    return f"{status}, {'reads' if read else 'does not read'}"


if __name__ == "__main__":
    sys.exit(main())
