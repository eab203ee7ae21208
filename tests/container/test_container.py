"""launch/Dockerfile, feedrate.def and mpijob.yaml on a bare Debian, without Docker or Kubernetes.

Needs root: make test-container. The files' own words are run, but that Debian's Python stands for the image
that they build on, pip takes this machine's settings, and a small dataset and workload stand for real ones.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from command import ANSWERED, feedrate
from hosts import HOSTS, LAB, lab

from emulator.record.out import read_result

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "launch"
FROM = "python:3.11-slim-bookworm"
PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
SLOTS = 2
SMALL = {"unet3d-a100": "unet3d-tiny"}
SHM = "/dev/shm:/dev/shm"
"""A mount as with --ipc=host, and in Apptainer."""
QUICK = ["--loader", "direct", "--steps", "8", "--budget", "30s"]


@pytest.fixture(scope="module")
def debian(tmp_path_factory):
    """The image that both files name; gone afterwards, with all that was made of it."""
    folder = tmp_path_factory.mktemp("image")
    subprocess.run([LAB / "container.sh", "base", folder / "debian"], check=True, stdout=subprocess.DEVNULL)
    yield folder / "debian"
    shutil.rmtree(folder)


def pip_settings() -> dict[str, str]:
    """This machine's index and wheels."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^(?:global|install|:env:)\.(\S+)='(.*)'$", listed, re.MULTILINE)
    return {f"PIP_{key.upper().replace('-', '_')}": value for key, value in found}


def build(image: Path, shell: str, arguments: dict[str, str]) -> None:
    """A step of both tools: root's /bin/sh, until something fails."""
    settings = {"PATH": PATH, **pip_settings(), **arguments}
    told = " ".join(pip_settings().values())
    local = re.findall(r"(?<!\S)/\S+", told) + re.findall(r"file://(/\S+)/simple", told)
    mounts = "\n".join(f"{path}:{path}:ro" for path in local)
    variables = [f"{key}={value}" for key, value in settings.items()]
    subprocess.run(
        [LAB / "container.sh", "in", image, "env", "-i", *variables, "/bin/sh", "-ec", shell],
        env={**os.environ, "MOUNTS": mounts}, check=True,
    )  # fmt: skip


def copy_context(to: Path) -> None:
    left_out = [line.removeprefix("**/") for line in (ROOT / ".dockerignore").read_text().split()]
    shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns(*left_out))


@dataclass(frozen=True)
class Image:
    folder: Path
    user: int
    home: str = "/"

    def start(
        self, words: Sequence[str], mounts: Sequence[str], host: str = "", on: str = "", **environment: str
    ) -> subprocess.Popen[str]:
        """A container without privileges, in the network of a host of the lab if `on` names one."""
        variables = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": self.home, **environment}
        told = {
            "USER_ID": str(self.user),
            "GROUP_ID": str(self.user),
            "HOST": host,
            "MOUNTS": "\n".join(mounts),
        }
        return subprocess.Popen(
            [*(["ip", "netns", "exec", on] if on else []), LAB / "container.sh", "run", self.folder,
             "env", "-i", "-C", self.home, *(f"{key}={value}" for key, value in variables.items()), *words],
            env={**os.environ, **told}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, words: Sequence[str], *mounts: str) -> subprocess.CompletedProcess[str]:
        process = self.start(words, mounts)
        try:
            out, errors = process.communicate(timeout=200)
        finally:
            process.kill()
        return subprocess.CompletedProcess(words, process.returncode, out, errors)


@pytest.fixture(scope="module")
def docker(debian):
    """Make what `docker build` makes of the Dockerfile."""
    folder = debian.with_name("docker")
    subprocess.run(["cp", "-a", debian, folder], check=True)
    text = re.sub(r"^#.*\n", "", (LAUNCH / "Dockerfile").read_text(), flags=re.MULTILINE)
    arguments: dict[str, str] = {}
    said: dict[str, str] = {}
    for line in filter(None, text.replace("\\\n", "").splitlines()):
        name, rest = line.split(maxsplit=1)
        match name:
            case "ARG":
                key, _, arguments[key] = rest.partition("=")
            case "COPY":
                assert rest == ". /src"
                copy_context(folder / "src")
            case "RUN":
                build(folder, rest, arguments)
            case _:
                said[name] = rest
    assert said == {
        "FROM": FROM, "USER": "1000", "WORKDIR": "/home/feedrate",
        "ENTRYPOINT": '["feedrate"]', "CMD": '["--help"]',
    }  # fmt: skip
    return Image(folder, 1000, "/home/feedrate")


@pytest.fixture
def volume(tmp_path):
    """A folder with a dataset, which the image's user may write into."""
    data = tmp_path / "volume"
    data.mkdir()
    done = feedrate("generate", data / "kits19", "--recipe", "tiny", "--files", 96)
    assert done.status == 0, done.err
    shutil.chown(data, 0, 1000)
    data.chmod(0o2775)
    return data


def test_the_command_of_the_dockerfiles_first_lines_gives_a_result(docker, volume):
    line = re.search(r"^#   docker run (.*)$", (LAUNCH / "Dockerfile").read_text(), re.MULTILINE)
    options, words = line[1].split(" feedrate ", maxsplit=1)
    assert options == '--rm --ipc=host --user "$(id -u):$(id -g)" -v /mnt/ai:/data'
    shutil.chown(volume, 4321, 4321)  # a user that the image does not know
    done = replace(docker, user=4321).run(
        ["feedrate", *(SMALL.get(word, word) for word in words.replace("-n 16", "-n 2").split()), *QUICK],
        f"{volume}:/data", SHM,
    )  # fmt: skip
    assert done.returncode in ANSWERED, done.stdout + done.stderr
    assert (volume / "sweep").stat().st_uid == 4321
    assert max(point.ranks for point in read_result(volume / "sweep").points) == 2


def test_doctor_finds_mpirun_and_library_of_one_family(docker):
    done = docker.run(["feedrate", "doctor"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mpi4py uses Open MPI" in done.stdout


def test_docker_stop_ends_a_run_and_keeps_what_it_measured(docker, volume):
    """feedrate is process 1 of its container, which gets only those signals that it asks for."""
    words = "run /data/kits19 --workload unet3d-tiny --loader direct --steps 100000 -n 2 --out /data/out"
    process = docker.start(["feedrate", *words.split()], [f"{volume}:/data", SHM])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (volume / "out" / "spool").is_dir():
        time.sleep(0.2)
    (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(first), signal.SIGTERM)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 143, out + errors
    assert read_result(volume / "out").status == "incomplete"


def test_the_apptainer_definition_runs_and_passes_its_own_test(debian, volume):
    folder = debian.with_name("apptainer")
    subprocess.run(["cp", "-a", debian, folder], check=True)
    header, *rest = re.split(r"^%(\w+)\n", (LAUNCH / "feedrate.def").read_text(), flags=re.MULTILINE)
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    assert f"From: {FROM}" in header and sections["files"].split() == [".", "/src"]
    copy_context(folder / "src")
    build(folder, sections["post"], {})
    build(folder, sections["test"], {})
    words = ["sweep", "/data/kits19", "--workload", "unet3d-tiny", "-n", "2", "--out", "/data/sweep", *QUICK]
    done = Image(folder, 1000).run(
        ["/bin/sh", "-c", sections["runscript"], "run", *words], f"{volume}:/data", SHM
    )
    assert done.returncode in ANSWERED, done.stdout + done.stderr
    assert read_result(volume / "sweep").points


@pytest.fixture
def secret(tmp_path):
    """Keys as the operator makes them, and as kubelet mounts them: root's, readable, behind links."""
    key = tmp_path / "key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-m", "PEM", "-N", "", "-f", key], check=True
    )
    folder = tmp_path / "secret"
    (folder / "..1").mkdir(parents=True)
    (folder / "..data").symlink_to("..1")
    for name, source in {"id_rsa": "key", "id_rsa.pub": "key.pub", "authorized_keys": "key.pub"}.items():
        shutil.copyfile(tmp_path / source, folder / "..1" / name)
        (folder / "..1" / name).chmod(0o644)
        (folder / name).symlink_to(f"..data/{name}")
    folder.chmod(0o3777)
    return folder


@pytest.fixture
def nodes():
    lab("hosts.sh", "up", len(HOSTS))
    yield HOSTS
    lab("hosts.sh", "down")


def test_the_mpijob_sweeps_over_its_workers(docker, nodes, secret, volume, tmp_path):
    """Keys, names, hostfile and variables as the operator (v2beta1) adds them. Four ranks, not sixteen."""
    job = yaml.safe_load((LAUNCH / "mpijob.yaml").read_text())
    spec, name = job["spec"], job["metadata"]["name"]
    worker, launcher = (spec["mpiReplicaSpecs"][role] for role in ("Worker", "Launcher"))
    workers = [f"{name}-worker-{number}" for number in range(worker["replicas"])]
    domain = f"{name}.default.svc"
    (tmp_path / "mpi").mkdir()
    (tmp_path / "mpi" / "hostfile").write_text("".join(f"{one}.{domain} slots={SLOTS}\n" for one in workers))
    names = "".join(f"10.78.0.{i} {one}.{domain} {one}\n" for i, one in enumerate(workers, start=1))
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    mounts = [f"{secret}:{spec['sshAuthMountPath']}:ro", f"{tmp_path}/hosts:/etc/hosts:ro"]
    template = worker["template"]["spec"]
    (sshd,) = template["containers"]
    (mpirun,) = launcher["template"]["spec"]["containers"]
    sources = {"persistentVolumeClaim": str(volume), "emptyDir": "tmpfs"}
    kinds = {one["name"]: sources[kind] for one in template["volumes"] for kind in one if kind != "name"}
    volumes = [f"{kinds[one['name']]}:{one['mountPath']}" for one in sshd["volumeMounts"]]
    command = [*sshd["command"], *sshd["args"]]
    pods = [
        docker.start(command, [*mounts, *volumes], host, on, K_MPI_JOB_ROLE="worker")
        for host, on in zip(workers, nodes, strict=False)
    ]
    words = [SMALL.get(word, word) for word in mpirun["args"]]
    words[words.index("16")] = str(SLOTS * len(workers))
    try:
        pods.append(
            docker.start(
                [*mpirun["command"], *words, *QUICK], [*mounts, f"{tmp_path}/mpi:/etc/mpi:ro"],
                f"{name}-launcher", nodes[-1], K_MPI_JOB_ROLE="launcher",
                OMPI_MCA_orte_keep_fqdn_hostnames="true", OMPI_MCA_orte_default_hostfile="/etc/mpi/hostfile",
                OMPI_MCA_plm_rsh_args="-o ConnectionAttempts=10",
                OMPI_MCA_orte_set_default_slots=str(SLOTS), NVIDIA_VISIBLE_DEVICES="",
                NVIDIA_DRIVER_CAPABILITIES="",
            )
        )  # fmt: skip
        out, errors = pods[-1].communicate(timeout=200)
        status = pods[-1].returncode
    finally:
        for pod in pods:
            pod.kill()
    said = out + errors + "".join(pod.communicate()[1] for pod in pods[:-1])
    assert status in ANSWERED, said
    point = max(read_result(volume / "results" / "sweep").points, key=lambda point: point.ranks)
    assert {share.host: share.ranks for share in point.hosts} == dict.fromkeys(workers, SLOTS), said
