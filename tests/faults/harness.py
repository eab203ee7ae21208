"""Commands under faults: with calls that fail, in a process of their own or forked from a warm one.

Whatever happens to a command, four things must hold. They are checked here, once:

    it ends within its deadline; it prints no traceback; a failure is one line that begins with
    `feedrate: error:`; and it leaves no process behind.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import Done, started

from emulator.registry import VERBS

HERE = Path(__file__).parent


def build_shim(folder: Path) -> Path:
    """The library that makes calls fail, compiled into `folder`; skips the test without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler, which builds the library that makes system calls fail")
    library = folder / "shim.so"
    words = [compiler, "-O2", "-shared", "-fPIC", "-o", library, HERE / "shim.c", "-ldl", "-lpthread"]
    subprocess.run(list(map(str, words)), check=True, timeout=60)
    return library


@dataclass(frozen=True)
class Struck:
    """A finished command, and how many calls matched its rule."""

    done: Done
    calls: int


def feedrate_struck(shim: Path, rule: str, *words: object, seconds: float = 90.0) -> Struck:
    """`feedrate WORDS` while calls fail by `rule` (see shim.c). Fails the test when it hangs."""
    with tempfile.NamedTemporaryFile(prefix="calls-") as counter:
        counter.write(bytes(8))
        counter.flush()
        faults = {"LD_PRELOAD": str(shim), "FEEDRATE_FAULTS": rule, "FEEDRATE_FAULTS_COUNT": counter.name}
        begin = time.monotonic()
        process = started(*words, environment=faults, start_new_session=True)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            pytest.fail(f"feedrate {' '.join(map(str, words))} under `{rule}` ran for over {seconds:.0f} s")
        calls = int.from_bytes(Path(counter.name).read_bytes(), sys.byteorder)
    return Struck(Done(process.returncode, out, err, time.monotonic() - begin), calls)


def load_verbs() -> None:
    """Import here what all commands import, so that forks need not each do it again."""
    for verb in VERBS:
        VERBS.load(verb)


def forked(
    words: list[str], folder: Path, seconds: float = 40.0, memory: int | None = 4 * 2**30, rule: str = ""
) -> Done:
    """`feedrate WORDS` in a fork of this process, which has its modules already: milliseconds, not seconds.

    For commands that read files and start nothing. `memory` bounds the address space that it may add, in
    bytes; None where a library reserves more than it uses. Calls fail by `rule` where the shim is loaded.
    """

    def work() -> int:
        bound_memory(memory)
        return run_command(words)

    return in_fork(work, folder, seconds, rule)


def run(work: Path, *words: object) -> Done:
    """`feedrate WORDS` in a fork; its output goes into files in `work`."""
    return forked([str(word) for word in words], work)


def in_fork(work: Callable[[], int], folder: Path, seconds: float = 40.0, rule: str = "") -> Done:
    """`work()` in a fork of this process, which ends with the status that it returns."""
    out, err = folder / "forked.out", folder / "forked.err"
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        status = 70
        try:
            redirect(out, err)
            if rule:
                ctypes.CDLL(None).feedrate_faults(rule.encode())
            status = work()
        except BaseException:  # noqa: BLE001 - whatever it is, the parent shall see it
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    ends = os.pidfd_open(child)
    in_time = select.select([ends], [], [], seconds)[0]
    os.close(ends)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    _, code = os.waitpid(child, 0)
    if not in_time:
        return Done(
            -1, out.read_text(errors="replace"), f"hung for {seconds:.0f} s", time.monotonic() - begin
        )
    status = os.waitstatus_to_exitcode(code)
    return Done(
        status, out.read_text(errors="replace"), err.read_text(errors="replace"), time.monotonic() - begin
    )


def redirect(out: Path, err: Path) -> None:
    """Redirect the output of this process to these files from now on."""
    for descriptor, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def bound_memory(memory: int | None) -> None:
    """Allow this process so many bytes more than it has; None: any number."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard if memory is None else used + memory, hard))


def run_command(words: list[str]) -> int:
    """`feedrate WORDS` in this process; its status."""
    from emulator.cli.main import command

    sys.argv = ["feedrate", *words]
    return command()


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below `folder` but locks and copies of what was damaged."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("lock", ".feedrate-lock") and "/damaged-" not in str(path)
    }


def complaint(done: Done) -> str:
    """Say what is wrong with the end of a command; empty: nothing."""
    if done.status == -1 or done.err.startswith("hung"):
        return f"hang: {done.err}"
    if done.status < 0:
        return f"died of signal {-done.status}: {done.err[-300:]}"
    if "Traceback" in done.err + done.out:
        return "traceback: " + done.err.strip().splitlines()[-1][-300:]
    if "an internal error" in done.err:
        return "an internal error: " + done.err.strip().splitlines()[-1][-300:]
    errors = [line for line in done.err.splitlines() if line.startswith("feedrate: error:")]
    if done.status not in (0, 130) and len(errors) != 1 and "Usage:" not in done.err and not done.out:
        return f"status {done.status} with {len(errors)} lines of error: {done.err[-300:]!r}"
    return ""
