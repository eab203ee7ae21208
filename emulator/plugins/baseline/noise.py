"""Noise of fio: jobs that write or read on the same storage during a run."""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from emulator.errors import SpecError, StorageError
from emulator.launch.child import ChildProcess
from emulator.plugins.baseline.fio import FioFolder, Setting, checked, parse, require_fio, side, start_fio
from emulator.plugins.baseline.suites import Suite, load_suite
from emulator.storage.posix import probe_direct
from emulator.units import parse_bytes, parse_rate, show_rate

_FOREVER = 30 * 86400.0
_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_SPEC = re.compile(r"(read|write):([1-9]\d*)x([^,]+)((?:,(?:depth|rate|size)=[^,]+)*)")
_HOW = "write it like writers, checkpoint, write:3x16KiB, or read:2x1MiB,depth=4,rate=50MB/s,size=1GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class FioNoise:
    """The fio jobs of each host."""

    suite: Suite
    names: tuple[str, ...]
    """Sections of the suite that run."""
    depth: int = 1
    file_bytes: int = 2**26
    """Bytes of a job's file."""


def parse_noise(text: str) -> FioNoise:
    """Parse `writers` (the noisy-neighbour brief's), `checkpoint`, or `read|write:JOBSxBLOCK[,OPTIONS]`.

    The options are depth=D, rate=R and size=S. Such jobs access their files at random; the rate is the total
    of all jobs of a host. Raises SpecError.
    """
    if text == "checkpoint":
        return FioNoise(suite=load_suite("checkpoint"), names=("checkpoint",), depth=4)
    if text == "writers":
        suite = load_suite("noisy-neighbour")
        names = tuple(name for name in suite.sections if name.startswith("writer"))
        return FioNoise(suite=suite, names=names)
    match = _SPEC.fullmatch(text)
    options = dict(part.split("=", 1) for part in match[4].split(",") if part) if match else {}
    if match is None or not options.get("depth", "8").isdigit():
        raise SpecError(f"--noise {text!r} is not understood", _HOW)
    clones, block = int(match[2]), parse_bytes(match[3])
    size = parse_bytes(options.get("size", 2**26))
    if not 0 < block <= size or block % 512:
        raise SpecError(f"--noise {text!r}: the block must be a multiple of 512 bytes, up to the size", _HOW)
    section = f"[noise]\nrw=rand{match[1]}\nbs={block}\niodepth={max(1, int(options.get('depth', 8)))}\n"
    if "rate" in options:
        section += f"rate={max(1, round(parse_rate(options['rate']) / clones))}\n"
    probe = load_suite("probe", clones)
    suite = replace(probe, sections={"global": probe.sections["global"], "noise": section})
    return FioNoise(suite=suite, names=("noise",), file_bytes=size)


def require(text: str) -> None:
    """Check the value of --noise, and that fio is installed. Raises SpecError, MissingError."""
    parse_noise(text)
    require_fio()


def begin(text: str, folder: Path) -> RunningNoise:
    """Start the noise `text` in `folder`. Raises SpecError, StorageError."""
    return RunningNoise(parse_noise(text), folder)


class RunningNoise:
    """fio on this host, from construction to `stop`. It ends with this process."""

    def __init__(self, noise: FioNoise, folder: Path) -> None:
        """Write the files and start fio. Raises MissingError, StorageError."""
        self._fio: ChildProcess | None = None
        self._folder = FioFolder(folder)
        try:
            setting = Setting(
                folders=(folder,), file_bytes=noise.file_bytes, direct=probe_direct(folder), seconds=_FOREVER
            )
            files = noise.suite.clones if len(noise.names) == 1 else len(noise.names)
            setting.lay_out(files)
            self._fio = fio = start_fio("the noise", on_death=signal.SIGINT)
            fio.send(setting.job_file(noise.suite, noise.names, depth=noise.depth, unlink=True), last=True)
            unopened = {str(folder.resolve() / f"job{number}.dat") for number in range(files)}

            def begun() -> bool:
                """Return True once fio has opened every file, so that no sweep starts before its noise."""
                for descriptor in Path(f"/proc/{fio.pid}/fd").glob("*"):
                    with suppress(OSError):  # closed in the meantime
                        unopened.discard(str(descriptor.readlink()))
                return not unopened

            if not fio.wait_for(begun, _START_SECONDS):
                out, err = fio.finish()
                checked(fio.returncode or 1, out, err)
        except BaseException:
            self.end()
            raise

    def stop(self) -> str:
        """Stop fio and return its JSON. Raises StorageError if it had ended before."""
        assert self._fio is not None
        early = self._fio.poll() is not None
        if not early:
            self._fio.send_signal(signal.SIGINT)
        try:
            out, err = self._fio.finish(seconds=_STOP_SECONDS)
        finally:
            self.end()
        output = checked(self._fio.returncode if early else 0, out, err)
        if early:
            raise StorageError("the noise ended before the run", "some points had no noise: repeat the run")
        return output

    def end(self) -> None:
        """Kill fio if it runs, and remove its files. Never raises."""
        if self._fio is not None:
            self._fio.end()
        self._folder.close()


def line(output: str) -> str:
    """Describe the noise of one host, such as `write 310 MB/s`. Raises StorageError."""
    groups = parse(output)
    sides = [(word, side([group[word] for group in groups])) for word in ("read", "write")]
    return ", ".join(f"{word} {show_rate(part.bytes_per_second)}" for word, part in sides if part)
