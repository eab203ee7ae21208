"""Commands under faults: with calls that fail, in a process of their own or forked from a warm one.

Whatever happens to a command, four things must hold. They are checked here, once:

    it ends within its deadline; it prints no traceback; a failure is one line that begins with
    `feedrate: error:`; and it leaves no process behind.
"""

from __future__ import annotations

import importlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import Done

HERE = Path(__file__).parent
DEADLINE = 40.0
"""Seconds that a command may take when its storage does not answer: 30 by default, and some to end."""


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


def feedrate_struck(
    shim: Path, rule: str, *words: object, seconds: float = DEADLINE, cwd: Path | None = None
) -> Struck:
    """`feedrate WORDS` while calls fail by `rule` (see shim.c). Fails the test when it hangs."""
    with tempfile.NamedTemporaryFile(prefix="calls-") as counter:
        counter.write(bytes(8))
        counter.flush()
        environment = {
            **os.environ,
            "LD_PRELOAD": str(shim),
            "FEEDRATE_FAULTS": rule,
            "FEEDRATE_FAULTS_COUNT": counter.name,
        }
        begin = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "emulator", *map(str, words)],
            text=True,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            pytest.fail(f"feedrate {' '.join(map(str, words))} under `{rule}` ran for over {seconds:.0f} s")
        calls = int.from_bytes(Path(counter.name).read_bytes(), sys.byteorder)
    return Struck(Done(process.returncode, out, err, time.monotonic() - begin), calls)


def load_modules_of(words: list[str], folder: Path) -> None:
    """Import here what `feedrate WORDS` imports, so that forks need not each do it again."""
    listing = folder / "modules"
    done = forked(words, folder, memory=None, modules=listing)
    assert "Traceback" not in done.err, done.err
    for name in listing.read_text().split():
        if name not in sys.modules:
            with suppress(ImportError):
                importlib.import_module(name)


def forked(
    words: list[str],
    folder: Path,
    seconds: float = 40.0,
    memory: int | None = 4 * 2**30,
    modules: Path | None = None,
) -> Done:
    """`feedrate WORDS` in a fork of this process, which has its modules already: milliseconds, not seconds.

    For commands that read files and start nothing. `memory` bounds the address space that it may add, in
    bytes; None where a library reserves more than it uses. The names of all modules go into `modules`.
    """
    out, err = folder / "forked.out", folder / "forked.err"
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        status = 70
        try:
            for descriptor, path in ((1, out), (2, err)):
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                os.dup2(file, descriptor)
            if memory is not None:
                used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
                resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
            sys.argv = ["feedrate", *words]
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            from emulator.cli.main import command

            status = command()
            sys.stdout.flush()
            if modules is not None:
                modules.write_text("\n".join(sys.modules))
        except BaseException:  # noqa: BLE001 - whatever it is, the parent shall see it
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    deadline = begin + seconds
    while True:
        ended, code = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Done(
                -1, out.read_text(errors="replace"), f"hung for {seconds:.0f} s", time.monotonic() - begin
            )
        time.sleep(0.001)
    status = os.waitstatus_to_exitcode(code)
    return Done(
        status, out.read_text(errors="replace"), err.read_text(errors="replace"), time.monotonic() - begin
    )


def complaint(done: Done) -> str:
    """What is wrong with how a command ended; empty when nothing is."""
    if done.status == -1 or done.err.startswith("hung"):
        return f"hang: {done.err}"
    if done.status < 0:
        return f"died of signal {-done.status}: {done.err[-300:]}"
    if "Traceback" in done.err + done.out:
        return "traceback: " + done.err.strip().splitlines()[-1][-300:]
    errors = [line for line in done.err.splitlines() if line.startswith("feedrate: error:")]
    if done.status not in (0, 130) and len(errors) != 1 and "Usage:" not in done.err and not done.out:
        return f"status {done.status} with {len(errors)} lines of error: {done.err[-300:]!r}"
    return ""
