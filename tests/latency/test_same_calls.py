"""A worker of the torch loader makes the system calls that the same library makes in a training."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from contracts.format_contract import Sample, parts_of

from emulator.dataset.formats import format_named

pytestmark = pytest.mark.latency
ROOT = Path(__file__).resolve().parents[2]
CALLS = "openat,read,pread64,lseek,mmap,readv,preadv,close,fstat,newfstatat"

PLAIN = {
    "npz": "import numpy as np\nwith np.load(path) as file: file['x'], file['y']",
    "npy": "import numpy as np\nnp.load(path), np.load(path.replace('_x.', '_y.'))",
    "hdf5": "import h5py\nwith h5py.File(path, 'r') as file: file['x'][...], file['y'][...]",
    "nii.gz": "import nibabel, numpy as np\n"
    "for one in (path, path.replace('_x.', '_y.')): np.asanyarray(nibabel.load(one).dataobj)",
}
OURS = """
from emulator.dataset.formats import format_named
from emulator.loader.arrays import load_sample
from emulator.loader.reading import Reader
from emulator.storage.posix import PosixStorage
from pathlib import Path
class Samples:
    format, names, sizes, samples_per_file = form, [Path(path).name], [size], 1
storage = PosixStorage(Path(path).parent, direct=False, cache="warm")
load_sample(Reader(storage, Samples, format_named(form), 2**22), 0)
"""


def calls(code: str, path: Path, form: str, size: int, tmp_path: Path) -> list[str]:
    """The calls on the sample's files, without descriptors and addresses: name, bytes asked for, result."""
    trace = tmp_path / "trace"
    begin = f"path, form, size = {str(path)!r}, {form!r}, {size}\n"
    strace = ["strace", "-f", "-y", "-o", str(trace), "-e", f"trace={CALLS}"]
    subprocess.run([*strace, sys.executable, "-c", begin + code], check=True, cwd=ROOT)
    found = []
    for line in trace.read_text().splitlines():
        if str(path.parent) in line and "resumed" not in line:
            line = re.sub(r'^\d+ +|\d+<|0x[0-9a-f]+|"[^"]*"\.*|>', "", line)
            found.append(" ".join(line.split()))
    return found


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed: make test-latency")
@pytest.mark.parametrize("form", PLAIN)
def test_the_calls_are_the_librarys(form, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    random = np.random.default_rng(1)
    sample = Sample(random.random((1, 96, 97, 98), np.float32), np.ones((1, 96, 97, 98), np.uint8))
    writer = format_named(form)
    name = "sample" + writer.suffix
    size = 0
    for part, data in zip(writer.parts(name), parts_of(writer, sample).values(), strict=True):
        (folder / part).write_bytes(data)
        size += len(data)
    plain = calls(PLAIN[form], folder / name, form, size, tmp_path)
    ours = calls(OURS, folder / name, form, size, tmp_path)
    assert len(plain) > 3
    assert without_size(ours) == plain and len(ours) <= len(plain) + 3 * len(writer.parts(name))


def without_size(calls: list[str]) -> list[str]:
    """Leave out the calls that find a file's size and evict it: two seeks, or an open, a seek and a close."""
    left = []
    calls = [*calls, "", ""]
    while len(calls) > 2:
        first, second, third = calls[:3]
        if first.startswith("openat") and "SEEK_END" in second:
            if third.startswith("close"):
                calls = calls[3:]
                continue
            assert "SEEK_SET" in third
            calls[1:3] = []
        left.append(calls.pop(0))
    return left
